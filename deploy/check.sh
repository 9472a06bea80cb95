#!/bin/sh
# Checks docker-compose.yml with the loader of Docker Compose, the Kubernetes files with
# the types of its API and kube-score, the kustomizations and the chart as Kustomize and Helm
# render them, and the units with systemd-analyze where it exists.
set -eu
cd "$(dirname "$0")/.."
tool="go tool -modfile=tools/manifests/go.mod"

failed() {
	echo "$1" >&2
	exit 1
}

$tool github.com/compose-spec/compose-go/v2/cmd docker-compose.yml >/dev/null

# -count=1: the cache of results does not know files outside the module.
out=$(cd tools/manifests && find ../../deploy/kubernetes ../../deploy/prometheus/podmonitor.yaml ../../deploy/prometheus/prometheusrule.yaml -name '*.yaml' \
	! -name kustomization.yaml ! -name relay.yaml -exec go run . {} + 2>&1 && go test -count=1 . 2>&1) || failed "$out"
# Left out: what depends on the cluster and the application, and limits of CPU, which
# throttle a relay that is far from its limit on average.
out=$($tool kube-score score --ignore-container-cpu-limit --exit-one-on-warning --output-format ci \
	--enable-optional-test container-seccomp-profile --enable-optional-test container-ports-check \
	--ignore-test pod-networkpolicy --ignore-test deployment-has-poddisruptionbudget \
	--ignore-test deployment-has-host-podantiaffinity --ignore-test container-image-pull-policy \
	--ignore-test pod-probes deploy/kubernetes/sidecar.yaml deploy/kubernetes/base/deployment.yaml deploy/kubernetes/components/migrate/migrate.yaml) || failed "$out"

command -v systemd-analyze >/dev/null || exit 0
units=$(mktemp -d)
trap 'rm -r "$units"' EXIT
for unit in deploy/systemd/*.service; do
	# verify wants programs that exist on this machine.
	sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$unit" >"$units/$(basename "$unit")"
done
systemd-analyze verify "$units"/*.service
systemd-analyze security --no-pager --offline=true --threshold=20 "$units"/*.service >"$units/report" ||
	failed "$(cat "$units/report")"
