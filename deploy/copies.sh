#!/bin/sh
# Writes the copies of files that Kustomize and Helm must have in their own folders. Tests compare them.
set -eu
cd "$(dirname "$0")"
{
	cat <<'END'
# The alerts of relay.rules.yaml for the Prometheus operator, written by deploy/copies.sh.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: relay
spec:
END
	sed -e '/^#/d' -e 's/^\(.\)/  \1/' prometheus/relay.rules.yaml
} >prometheus/prometheusrule.yaml
cp postgres/grants.sql prometheus/relay.rules.yaml grafana/relay.json helm/relay/
