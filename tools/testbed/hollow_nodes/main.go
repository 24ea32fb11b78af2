// Many of kubemark's hollow nodes in one process.
//
// kubemark runs one node a process, some 50 MB each. This starts as many as a file names, each with
// its own client, its own user and its own pretended machine. It is built inside Kubernetes's sources.
package main

import (
	"encoding/json"
	"io/ioutil"
	"math/rand"
	"os"
	"path/filepath"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	clientset "k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
	"k8s.io/klog/v2"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	fakeremote "k8s.io/kubernetes/pkg/kubelet/cri/remote/fake"
	"k8s.io/kubernetes/pkg/kubemark"
)

type settings struct {
	Server      string            `json:"server"`
	Certificate string            `json:"certificate"`
	Folder      string            `json:"folder"`
	Address     string            `json:"address"`
	Cores       int               `json:"cores"`
	Memory      uint64            `json:"memory"`
	Labels      map[string]string `json:"labels"`
	Lease       int32             `json:"lease"`
	Nodes       []struct {
		Name  string `json:"name"`
		Token string `json:"token"`
	} `json:"nodes"`
}

// machine is what a hollow node says of its hardware.
type machine struct {
	*cadvisortest.Fake
	cores  int
	memory uint64
}

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	info, err := m.Fake.MachineInfo()
	if err != nil {
		return nil, err
	}
	told := *info
	told.NumCores, told.MemoryCapacity = m.cores, m.memory
	return &told, nil
}

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}

func start(told settings, name, token string) {
	config := &restclient.Config{
		Host:            told.Server,
		BearerToken:     token,
		TLSClientConfig: restclient.TLSClientConfig{CAFile: told.Certificate},
		ContentConfig:   restclient.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		QPS:             20,
		Burst:           40,
	}
	client, err := clientset.NewForConfig(config)
	check(err)
	beating := *config
	beating.Timeout = time.Duration(told.Lease) * time.Second
	beating.QPS = -1
	heart, err := clientset.NewForConfig(&beating)
	check(err)

	flags, kubelet := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubletOptions{
		NodeName:   name,
		MaxPods:    110,
		NodeLabels: told.Labels,
	})
	check(os.RemoveAll(flags.RootDirectory)) // a folder that it made elsewhere
	folder := filepath.Join(told.Folder, name)
	check(os.MkdirAll(filepath.Join(folder, "pods"), 0o755))
	flags.RootDirectory = folder
	flags.NodeIP = told.Address
	kubelet.StaticPodPath = ""
	kubelet.EnableServer = false
	kubelet.NodeLeaseDurationSeconds = told.Lease
	kubelet.FileCheckFrequency.Duration = time.Hour
	kubelet.MaxOpenFiles = 1 << 20 // of the process, which all of them share
	kubelet.MakeIPTablesUtilChains = false // it would write rules of this machine

	runtime := fakeremote.NewFakeRemoteRuntime()
	runtime.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{
		Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true},
		},
	}
	hollow := kubemark.NewHollowKubelet(
		flags, kubelet, client, heart,
		&machine{&cadvisortest.Fake{NodeName: name}, told.Cores, told.Memory},
		runtime.ImageService, runtime.RuntimeService, cm.NewStubContainerManager(),
	)
	go hollow.Run()
}

func main() {
	rand.Seed(time.Now().UnixNano())
	content, err := ioutil.ReadFile(os.Args[1])
	check(err)
	var told settings
	check(json.Unmarshal(content, &told))
	for _, node := range told.Nodes {
		start(told, node.Name, node.Token)
	}
	select {}
}
