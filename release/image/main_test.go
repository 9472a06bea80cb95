package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The image starts as that of the Dockerfile does.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(data), "\nFROM scratch AS base\n")
	value := func(instruction string) string {
		found := regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllStringSubmatch(file, -1)
		if len(found) != 1 {
			t.Fatalf("the Dockerfile has %d lines %s, expected 1", len(found), instruction)
		}
		return found[0][1]
	}
	list := func(text string) (list []string) {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	want := execution{
		User: value("USER"), Env: []string{value("ENV")}, Entrypoint: list(value("ENTRYPOINT")),
		ExposedPorts: map[string]struct{}{value("EXPOSE") + "/tcp": {}},
	}
	check, command, _ := strings.Cut(value("HEALTHCHECK"), " CMD ")
	want.Healthcheck.Test = append([]string{"CMD"}, list(command)...)
	var seconds [3]time.Duration
	if _, err := fmt.Sscanf(check, "--interval=%ds --timeout=%ds --start-period=%ds", &seconds[0], &seconds[1], &seconds[2]); err != nil {
		t.Fatal(err)
	}
	want.Healthcheck.Interval, want.Healthcheck.Timeout, want.Healthcheck.StartPeriod = seconds[0]*time.Second, seconds[1]*time.Second, seconds[2]*time.Second
	if got := dockerfile(); !reflect.DeepEqual(got, want) {
		t.Errorf("the image has %+v; the Dockerfile has %+v", got, want)
	}
}
