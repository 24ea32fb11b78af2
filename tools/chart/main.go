// Renders the chart as Helm does, for tests on machines without Helm: Go's templates, with only
// those functions of Helm that the chart uses.
//
//	go run tools/chart/main.go CHART KUBE_VERSION RELEASE NAMESPACE < values.json
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

type files string

func (root files) Get(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(root), name))
	return string(text), err
}

func toJSON(value interface{}) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

// compare returns whether a version satisfies a constraint of the form ">=MAJOR.MINOR-0".
func compare(wanted, version string) (bool, error) {
	if !strings.HasPrefix(wanted, ">=") || !strings.HasSuffix(wanted, "-0") {
		return false, fmt.Errorf("unsupported constraint %q", wanted)
	}
	minimum := strings.Split(strings.TrimSuffix(strings.TrimPrefix(wanted, ">="), "-0"), ".")
	actual := strings.Split(strings.TrimPrefix(version, "v"), ".")
	for index := range minimum {
		required, err := strconv.Atoi(minimum[index])
		if err != nil {
			return false, err
		}
		number, err := strconv.Atoi(actual[index])
		if err != nil {
			return false, err
		}
		if required != number {
			return number > required, nil
		}
	}
	return true, nil
}

func uniq(list []interface{}) []interface{} {
	seen := map[interface{}]bool{}
	result := []interface{}{}
	for _, item := range list {
		if !seen[item] {
			seen[item] = true
			result = append(result, item)
		}
	}
	return result
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	root, version, release, namespace := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	values := map[string]interface{}{}
	check(json.NewDecoder(os.Stdin).Decode(&values))
	functions := template.FuncMap{
		"toJson":        toJSON,
		"toYaml":        toJSON, // JSON is YAML
		"quote":         func(value interface{}) string { return strconv.Quote(fmt.Sprint(value)) },
		"sha256sum":     func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) },
		"semverCompare": compare,
		"uniq":          uniq,
		"prepend": func(list []interface{}, item interface{}) []interface{} {
			return append([]interface{}{item}, list...)
		},
	}
	data := map[string]interface{}{
		"Values":       values,
		"Release":      map[string]interface{}{"Name": release, "Namespace": namespace},
		"Capabilities": map[string]interface{}{"KubeVersion": map[string]string{"Version": version}},
		"Files":        files(root),
	}
	paths, err := filepath.Glob(filepath.Join(root, "templates", "*.yaml"))
	check(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		parsed, err := template.New(path).Option("missingkey=error").Funcs(functions).Parse(string(text))
		check(err)
		fmt.Println("---")
		check(parsed.Execute(os.Stdout, data))
	}
}
