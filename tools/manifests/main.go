// Command manifests checks Kubernetes files against the types of the Kubernetes API: an
// unknown or misplaced key is an error, where the API server would ignore it.
package main

import (
	"bytes"
	"fmt"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// objects are the kinds that the files use.
var objects = map[string]func() any{
	"apps/v1 Deployment":                      func() any { return new(appsv1.Deployment) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"batch/v1 Job":                            func() any { return new(batchv1.Job) },
	"keda.sh/v1alpha1 ScaledObject":           func() any { return new(scaledObject) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoringv1.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoringv1.PrometheusRule) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networkingv1.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policyv1.PodDisruptionBudget) },
	"v1 ConfigMap":                            func() any { return new(corev1.ConfigMap) },
	"v1 Secret":                               func() any { return new(corev1.Secret) },
}

func main() {
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func check(path string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for document := range bytes.SplitSeq(file, []byte("\n---\n")) {
		if _, err := decode(document); err != nil {
			return err
		}
	}
	return nil
}

// decode returns the object of a document, strictly decoded into its type.
func decode(document []byte) (any, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	name := kind.APIVersion + " " + kind.Kind
	newObject, ok := objects[name]
	if !ok {
		return nil, fmt.Errorf("the object is %q; expected one of those in tools/manifests/main.go", name)
	}
	object := newObject()
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return object, nil
}
