package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

//go:embed crds/keda.sh_scaledobjects.yaml
var scaledObjectCRD []byte

// scaledObject is an object of KEDA, which only its CustomResourceDefinition checks: the
// Go module with its type contains the operator. The schema leaves the keys of a trigger's
// metadata to the trigger.
type scaledObject map[string]any

func (o *scaledObject) UnmarshalJSON(data []byte) error {
	schema, err := scaledObjectSchema()
	if err != nil {
		return err
	}
	object := map[string]any{}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	*o = object
	return schema.Validate(object)
}

var scaledObjectSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(scaledObjectCRD, &crd); err != nil {
		return nil, err
	}
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != "v1alpha1" {
		return nil, errors.New("the CRD of ScaledObject has other versions than v1alpha1")
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	closeObjects(schema)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7)
	if err := c.AddResource("scaledobject.json", schema); err != nil {
		return nil, fmt.Errorf("the CRD of ScaledObject: %w", err)
	}
	return c.Compile("scaledobject.json")
})

// closeObjects refuses unknown keys, which the API server would drop.
func closeObjects(schema map[string]any) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		if schema["x-kubernetes-preserve-unknown-fields"] != true {
			schema["additionalProperties"] = false
		}
		for _, property := range properties {
			closeObjects(property.(map[string]any))
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		closeObjects(items)
	}
}
