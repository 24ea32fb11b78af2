// Renders a chart as Helm does, as far as the chart here goes: Go's own templates, and those of
// Helm's functions that it uses. Written for the tests, which have no Helm.
//
//	go run tools/chart/main.go CHART KUBE_VERSION NAMESPACE < values.json
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

// compare knows what the chart asks for: ">=MAJOR.MINOR-0".
func compare(wanted, version string) (bool, error) {
	if !strings.HasPrefix(wanted, ">=") || !strings.HasSuffix(wanted, "-0") {
		return false, fmt.Errorf("%q is not compared here", wanted)
	}
	least := strings.Split(strings.TrimSuffix(strings.TrimPrefix(wanted, ">="), "-0"), ".")
	there := strings.Split(strings.TrimPrefix(version, "v"), ".")
	for at := range least {
		one, err := strconv.Atoi(least[at])
		if err != nil {
			return false, err
		}
		other, err := strconv.Atoi(there[at])
		if err != nil {
			return false, err
		}
		if one != other {
			return other > one, nil
		}
	}
	return true, nil
}

func uniq(list []interface{}) []interface{} {
	seen := map[interface{}]bool{}
	found := []interface{}{}
	for _, one := range list {
		if !seen[one] {
			seen[one] = true
			found = append(found, one)
		}
	}
	return found
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
		"prepend": func(list []interface{}, one interface{}) []interface{} {
			return append([]interface{}{one}, list...)
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
		made, err := template.New(path).Option("missingkey=error").Funcs(functions).Parse(string(text))
		check(err)
		fmt.Println("---")
		check(made.Execute(os.Stdout, data))
	}
}
