package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const kubernetes = "../../deploy/kubernetes/"

// chartPath is the chart; make release names the archive that it packaged.
var chartPath = flag.String("chart", "../../deploy/helm/relay", "folder or archive of the chart")

// set is the objects of one rendering, by kind and name.
type set map[string]any

func (s set) add(t *testing.T, document []byte) {
	t.Helper()
	object, err := decode(document)
	if err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	kind, meta := describe(t, object)
	name := kind + " " + meta.Name
	if s[name] != nil {
		t.Fatalf("two objects are %s", name)
	}
	s[name] = object
}

// describe returns the kind and the metadata of an object, which may be a CRD's.
func describe(t *testing.T, object any) (kind string, meta metav1.ObjectMeta) {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var head struct {
		Kind     string
		Metadata metav1.ObjectMeta
	}
	if err := yaml.Unmarshal(text, &head); err != nil {
		t.Fatal(err)
	}
	return head.Kind, head.Metadata
}

// kustomize renders a kustomization as `kubectl kustomize` does.
func kustomize(t *testing.T, path string) set {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatal(err)
	}
	objects := set{}
	for _, resource := range rendered.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		objects.add(t, text)
	}
	return objects
}

// overlay renders the base with components.
func overlay(t *testing.T, components ...string) set {
	t.Helper()
	return patched(t, "", components...)
}

// patched renders the base with components and patches, a list of YAML.
func patched(t *testing.T, patches string, components ...string) set {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	if root, err = filepath.Rel(dir, root); err != nil { // Kustomize refuses absolute paths
		t.Fatal(err)
	}
	text := "resources: [" + root + "/base]\ncomponents:\n"
	for _, name := range components {
		text += "  - " + root + "/components/" + name + "\n"
	}
	if patches != "" {
		text += "patches:\n" + patches
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomize(t, dir)
}

// renderChart renders the chart as `helm template` does for a release in the namespace
// shop. The values are those of a file `helm install --values`.
func renderChart(t *testing.T, release, values string) (objects set, hooks []*releaseHook, notes string, err error) {
	t.Helper()
	relay, err := loader.Load(*chartPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Validate(); err != nil {
		t.Fatal(err)
	}
	user, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: "shop", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(relay, user, options, chartutil.DefaultCapabilities.Copy()) // checks the schema
	if err != nil {
		return nil, nil, "", err
	}
	files, err := engine.Engine{Strict: true}.Render(relay, all)
	if err != nil {
		return nil, nil, "", err
	}
	notes = files["relay/templates/NOTES.txt"]
	delete(files, "relay/templates/NOTES.txt")
	manual, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		t.Fatal(err)
	}
	objects = set{}
	for _, hook := range manual {
		objects.add(t, []byte(hook.Manifest))
		hooks = append(hooks, &releaseHook{hook.Name, hook.Kind, hook.Weight})
	}
	for _, m := range manifests {
		objects.add(t, []byte(m.Content))
	}
	return objects, hooks, notes, nil
}

type releaseHook struct {
	Name, Kind string
	Weight     int
}

func mustRender(t *testing.T, values string) set {
	t.Helper()
	objects, _, _, err := renderChart(t, "relay", values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// runs returns what a set runs: its objects without labels and annotations of the tools. A
// ConfigMap counts as the files that a container finds at the paths of its mounts, whatever
// its name is.
func runs(t *testing.T, s set) map[string]any {
	t.Helper()
	what := map[string]any{}
	for name, object := range s {
		switch o := object.(type) {
		case *corev1.ConfigMap:
			if o.Labels["grafana_dashboard"] == "" {
				continue
			}
			neutral(&o.ObjectMeta)
			delete(o.Labels, "app")
			for key, text := range o.Data {
				o.Data[key] = strings.TrimSuffix(text, "\n") // Helm trims manifests
			}
		case *appsv1.Deployment:
			neutral(&o.ObjectMeta)
			neutral(&o.Spec.Template.ObjectMeta)
			what[name+" files"] = mounted(t, s, &o.Spec.Template.Spec)
		case *batchv1.Job:
			neutral(&o.ObjectMeta)
			neutral(&o.Spec.Template.ObjectMeta)
			what[name+" files"] = mounted(t, s, &o.Spec.Template.Spec)
		case *monitoringv1.PodMonitor:
			neutral(&o.ObjectMeta)
			o.Spec.Selector = metav1.LabelSelector{} // TestPodMonitor
		case *scaledObject:
			metadata := (*o)["metadata"].(map[string]any)
			delete(metadata, "labels")
			delete(metadata, "namespace")
		default:
			neutral(reflect.ValueOf(object).Elem().FieldByName("ObjectMeta").Addr().Interface().(*metav1.ObjectMeta))
		}
		what[name] = object
	}
	return what
}

// neutral removes what tools add to an object.
func neutral(meta *metav1.ObjectMeta) {
	ofTool := func(key, _ string) bool {
		return strings.HasPrefix(key, "app.kubernetes.io/") || strings.HasPrefix(key, "helm.sh/") || strings.HasPrefix(key, "checksum/")
	}
	maps.DeleteFunc(meta.Labels, ofTool)
	maps.DeleteFunc(meta.Annotations, ofTool)
	if len(meta.Annotations) == 0 {
		meta.Annotations = nil
	}
	if len(meta.Labels) == 1 && meta.Labels["app"] == meta.Name {
		meta.Labels = nil // plain files label only what is selected
	}
	meta.Namespace = ""
}

// mounted returns the files of ConfigMaps by container and path, and removes the volumes
// from the pod. A ConfigMap that the set does not have is an error.
func mounted(t *testing.T, s set, pod *corev1.PodSpec) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, mount := range c.VolumeMounts {
			i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
			if i < 0 || pod.Volumes[i].ConfigMap == nil {
				t.Fatalf("container %s mounts %s, which is no ConfigMap", c.Name, mount.Name)
			}
			source := pod.Volumes[i].ConfigMap
			from, ok := s["ConfigMap "+source.Name].(*corev1.ConfigMap)
			if !ok {
				t.Fatalf("container %s mounts the ConfigMap %s, which does not exist", c.Name, source.Name)
			}
			for key, text := range from.Data {
				path := key
				if len(source.Items) > 0 {
					j := slices.IndexFunc(source.Items, func(item corev1.KeyToPath) bool { return item.Key == key })
					if j < 0 {
						continue
					}
					path = source.Items[j].Path
				}
				files[c.Name+":"+mount.MountPath+"/"+path] = strings.TrimSuffix(text, "\n") // Helm trims manifests
			}
		}
	}
	pod.Volumes = nil
	return files
}

// The chart and the kustomizations run the same, by default and with each component.
func TestSame(t *testing.T) {
	for _, test := range []struct {
		name, values string
		components   []string
		objects      int
	}{
		{name: "Default", objects: 4},
		{name: "HPA", values: "autoscaling: {kind: hpa}", components: []string{"hpa"}, objects: 5},
		{name: "KEDA", values: "autoscaling: {kind: keda}", components: []string{"keda"}, objects: 5},
		{name: "Monitoring", values: "monitoring: {podMonitor: true, rules: true, dashboard: true}", components: []string{"monitoring"}, objects: 7},
		{name: "Migrate", values: "migrate: {enabled: true, applicationRole: shop}", components: []string{"migrate"}, objects: 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := kustomize(t, kubernetes+"base")
			if test.components != nil {
				k = overlay(t, test.components...)
			}
			if len(k) != test.objects {
				t.Errorf("Kustomize renders %d objects, %v; expected %d", len(k), slices.Sorted(maps.Keys(k)), test.objects)
			}
			if diff := cmp.Diff(runs(t, k), runs(t, mustRender(t, test.values))); diff != "" {
				t.Errorf("the chart runs something else (-kustomize +helm):\n%s", diff)
			}
		})
	}
}

// With the values and the patches of docs/running.md, both export traces, and the NetworkPolicy lets them through.
func TestTraces(t *testing.T) {
	text, err := os.ReadFile("../../docs/running.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)<!-- tested by tools/manifests: TestTraces -->\n```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(examples) != 2 {
		t.Fatalf("docs/running.md has %d examples; expected values and patches", len(examples))
	}
	objects := runs(t, patched(t, examples[1][1]))
	if diff := cmp.Diff(objects, runs(t, mustRender(t, examples[0][1]))); diff != "" {
		t.Errorf("the chart runs something else (-kustomize +helm):\n%s", diff)
	}
	ports := objects["NetworkPolicy relay"].(*networkingv1.NetworkPolicy).Spec.Egress[1].Ports
	if !slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntValue() == 4318 }) {
		t.Errorf("the NetworkPolicy allows %v", ports)
	}
}

// The example overlay renders, and its configuration replaces that of the base.
func TestOverlay_Example(t *testing.T) {
	objects := kustomize(t, kubernetes+"overlays/example")
	for name, object := range objects {
		if _, meta := describe(t, object); meta.Namespace != "shop" {
			t.Errorf("%s is in the namespace %q; expected shop", name, meta.Namespace)
		}
	}
	d := objects["Deployment relay"].(*appsv1.Deployment)
	if d.Spec.Replicas != nil {
		t.Errorf("the Deployment has %d replicas, and an autoscaler", *d.Spec.Replicas)
	}
	want, err := os.ReadFile(kubernetes + "overlays/example/relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := mounted(t, objects, &d.Spec.Template.Spec)["relay:/etc/relay/relay.yaml"]; got+"\n" != string(want) {
		t.Errorf("the relay reads %q; expected %q", got, want)
	}
}

// A PodMonitor selects the pods of its relays, and not those of another release.
func TestPodMonitor(t *testing.T) {
	for name, objects := range map[string]set{
		"kustomize": overlay(t, "monitoring"),
		"helm":      mustRender(t, "monitoring: {podMonitor: true}"),
	} {
		selector, err := metav1.LabelSelectorAsSelector(&objects["PodMonitor relay"].(*monitoringv1.PodMonitor).Spec.Selector)
		if err != nil {
			t.Fatal(err)
		}
		d := objects["Deployment relay"].(*appsv1.Deployment)
		if !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s: the PodMonitor selects %s; the pods are %v", name, selector, d.Spec.Template.Labels)
		}
		if selector.Matches(labels.Set{"app": "other"}) {
			t.Errorf("%s: the PodMonitor selects pods of others: %s", name, selector)
		}
	}
}

// An autoscaler of KEDA and the adapter of an HPA ask the same query.
func TestBacklogQuery(t *testing.T) {
	scaler := *overlay(t, "keda")["ScaledObject relay"].(*scaledObject)
	trigger := scaler["spec"].(map[string]any)["triggers"].([]any)[0].(map[string]any)
	query := trigger["metadata"].(map[string]any)["query"].(string)
	for _, path := range []string{"deploy/kubernetes/components/hpa/hpa.yaml", "docs/running.md"} {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), query) {
			t.Errorf("%s lacks the query %s", path, query)
		}
	}
}

// Two releases in one namespace share no object and select no pod of each other.
func TestChart_TwoReleases(t *testing.T) {
	const values = "{autoscaling: {kind: keda}, monitoring: {podMonitor: true, rules: true, dashboard: true}, migrate: {enabled: true, applicationRole: shop}}"
	one := mustRender(t, values)
	two, _, _, err := renderChart(t, "bills", values)
	if err != nil {
		t.Fatal(err)
	}
	for name := range one {
		if two[name] != nil {
			t.Errorf("both releases have %s", name)
		}
	}
	text, err := yaml.Marshal(two)
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`app: relay\b`).FindString(string(text)); m != "" {
		t.Errorf("the release bills has the label %q", m)
	}
}

func TestChart_Values(t *testing.T) {
	const config = "  # indented\nadmin: {token: \"${A}\"}\npipelines: []\n"
	objects, _, notes, err := renderChart(t, "relay", fmt.Sprintf(`
image: {repository: registry.shop/relay, tag: "1.2.3@sha256:0123"}
imagePullSecrets: [{name: registry}]
replicas: 1
config: %q
existingSecret: mine
env: {GOMEMLIMIT: 800MiB, OTEL_TRACES_SAMPLER_ARG: "0.01"}
resources: {limits: {memory: 3Gi}}
networkPolicy: {egressPorts: [6543, 443], prometheusNamespace: observability}
`, config))
	if err != nil {
		t.Fatal(err)
	}
	if objects["PodDisruptionBudget relay"] != nil {
		t.Error("one relay has a PodDisruptionBudget, which holds up a drain for ever")
	}
	template := &objects["Deployment relay"].(*appsv1.Deployment).Spec.Template
	for key, value := range template.Labels {
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			t.Errorf("the label %s is %q: %v", key, value, wrong)
		}
	}
	pod := &template.Spec
	if got := mounted(t, objects, pod)["relay:/etc/relay/relay.yaml"]; got+"\n" != config {
		t.Errorf("relay.yaml is %q; expected %q", got, config)
	}
	c := pod.Containers[0]
	if c.Image != "registry.shop/relay:1.2.3@sha256:0123" || pod.ImagePullSecrets[0].Name != "registry" || c.EnvFrom[0].SecretRef.Name != "mine" || c.Resources.Limits.Memory().String() != "3Gi" {
		t.Errorf("the container is %+v", c)
	}
	if want := []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: "800MiB"}, {Name: "OTEL_TRACES_SAMPLER_ARG", Value: "0.01"}}; !slices.Equal(c.Env, want) {
		t.Errorf("the environment is %v", c.Env)
	}
	if !strings.Contains(notes, "DNS and the ports 6543, 443 (") || !strings.Contains(notes, "did not migrate") {
		t.Errorf("the notes are\n%s", notes)
	}
}

// The Job runs before the objects of the release exist, and so brings its own configuration.
func TestChart_MigrateHook(t *testing.T) {
	objects, hooks, _, err := renderChart(t, "relay", "migrate: {enabled: true, applicationRole: shop}")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, hook := range hooks {
		names[hook.Kind+" "+hook.Name] = hook.Weight
	}
	if want := map[string]int{"ConfigMap relay-migrate": -1, "Job relay-migrate": 0}; !maps.Equal(names, want) {
		t.Errorf("the hooks are %v; expected %v", names, want)
	}
	for _, v := range objects["Job relay-migrate"].(*batchv1.Job).Spec.Template.Spec.Volumes {
		if names["ConfigMap "+v.ConfigMap.Name] != -1 {
			t.Errorf("the Job mounts the ConfigMap %s, which does not exist before the release", v.ConfigMap.Name)
		}
	}
}

func TestChart_BadValues(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 3":                               "replica is not allowed",
		"replicas: 0":                              "replicas: Must be greater than or equal to 1",
		"config: {pipelines: []}":                  "config: Invalid type",
		"config: ''":                               "config: Does not match pattern",
		"env: {GOMEMLIMIT: 1}":                     "env.GOMEMLIMIT: Invalid type",
		"autoscaling: {kind: vpa}":                 "autoscaling.kind must be one of",
		"autoscaling: {minReplicas: 0}":            "autoscaling.minReplicas: Must be greater",
		"networkPolicy: {egressPorts: [redis]}":    "networkPolicy.egressPorts.0: Invalid type",
		"networkPolicy: {egressPorts: []}":         "networkPolicy.egressPorts: Array must have at least 1 items",
		"migrate: {enabled: true}":                 "migrate.applicationRole is empty; expected the role of the application",
		"existingSecret: Relay Secrets":            "existingSecret: Does not match pattern",
		"autoscaling: {prometheus: {url: 'x'}}":    "url is not allowed",
		"image: {digest: 'sha256:00'}":             "digest is not allowed",
		"monitoring: {podMonitor: {enabled: yes}}": "monitoring.podMonitor: Invalid type",
		"monitoring: {labels: {release: 1}}":       "monitoring.labels.release: Invalid type",
	} {
		_, _, _, err := renderChart(t, "relay", values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v; expected %q", values, err, want)
		}
	}
}

// The schema knows every value, and the files that the chart has copies of are the same.
func TestChart_Files(t *testing.T) {
	relay, err := loader.Load(*chartPath)
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := yaml.Unmarshal(relay.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	known(t, "", schema, relay.Values)
	same(t, relay, "grants.sql", "../../deploy/postgres/grants.sql")
	same(t, relay, "relay.rules.yaml", "../../deploy/prometheus/relay.rules.yaml")
	same(t, relay, "relay.json", "../../deploy/grafana/relay.json")
}

// The PrometheusRule has the rules that promtool tests, also without a field of its type.
func TestPrometheusRule(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/relay.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want, got struct{ Groups any }
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	rule := overlay(t, "monitoring")["PrometheusRule relay"].(*monitoringv1.PrometheusRule)
	if text, err = yaml.Marshal(rule.Spec); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prometheusrule.yaml is not relay.rules.yaml, run deploy/copies.sh (-file +rule):\n%s", diff)
	}
}

// The labels by which a Prometheus selects are on what it selects, and on nothing else.
func TestMonitoringLabels(t *testing.T) {
	for name, objects := range map[string]set{
		"kustomize": kustomize(t, kubernetes+"overlays/example"),
		"helm":      mustRender(t, "monitoring: {podMonitor: true, rules: true, dashboard: true, labels: {release: kube-prometheus-stack}}"),
	} {
		for key, object := range objects {
			kind, meta := describe(t, object)
			if labelled := meta.Labels["release"] == "kube-prometheus-stack"; labelled != (kind == "PodMonitor" || kind == "PrometheusRule") {
				t.Errorf("%s: %s has the labels %v", name, key, meta.Labels)
			}
		}
	}
}

func same(t *testing.T, c *chart.Chart, name, path string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range c.Files {
		if file.Name == name {
			if diff := cmp.Diff(string(want), string(file.Data)); diff != "" {
				t.Errorf("%s of the chart is not %s, run deploy/copies.sh:\n%s", name, path, diff)
			}
			return
		}
	}
	t.Errorf("the chart has no file %s", name)
}

// known checks that schema and default values have the same keys.
func known(t *testing.T, path string, schema, values map[string]any) {
	t.Helper()
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return
	}
	for key, value := range values {
		property, ok := properties[key].(map[string]any)
		if !ok {
			t.Errorf("values.schema.json lacks %s%s", path, key)
			continue
		}
		if section, ok := value.(map[string]any); ok {
			known(t, path+key+".", property, section)
		}
	}
	for key := range properties {
		if _, ok := values[key]; !ok && path+key != "global" {
			t.Errorf("values.yaml lacks %s%s", path, key)
		}
	}
}

// What the API server would ignore is an error.
func TestStrict(t *testing.T) {
	for document, want := range map[string]string{
		"{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, spec: {scaleTargetRef: {name: relay}, triggers: [], minReplicas: 2}}": "minReplicas",
		"{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, spec: {triggers: []}}":                                                "scaleTargetRef",
		"{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, spec: {podMetricsEndpoint: []}}":                                "podMetricsEndpoint",
		"{apiVersion: apps/v1, kind: Deployment, spec: {template: {spec: {containers: [{name: relay, livenesProbe: {}}]}}}}":      "livenesProbe",
		"{apiVersion: v1, kind: Pod}": `"v1 Pod"`,
	} {
		if _, err := decode([]byte(document)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v; expected %q", document, err, want)
		}
	}
}
