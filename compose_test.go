package relay_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// composeFile is the part of docker-compose.yml that the test follows.
type composeFile struct {
	Services map[string]struct {
		Entrypoint, Command, Ports, Volumes []string
		Environment                         map[string]string
		Image, User                         string
		ReadOnly                            bool     `yaml:"read_only"`
		CapDrop                             []string `yaml:"cap_drop"`
		SecurityOpt                         []string `yaml:"security_opt"`
		MemLimit                            string   `yaml:"mem_limit"`
	}
}

// mounted returns the files that a service mounts below a folder, in the order of their names there.
func (f composeFile) mounted(service, folder string) (files []string) {
	at := map[string]string{}
	for _, v := range f.Services[service].Volumes {
		file, place, _ := strings.Cut(v, ":")
		place, _, _ = strings.Cut(place, ":")
		if strings.HasPrefix(place, folder+"/") {
			at[place] = file
		}
	}
	for _, place := range slices.Sorted(maps.Keys(at)) {
		files = append(files, at[place])
	}
	return files
}

// testCompose runs the programs of docker-compose.yml with its commands, its roles and its
// configuration, on the test's own servers.
func testCompose(t *testing.T, programs string) {
	var file composeFile
	if err := yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &file); err != nil {
		t.Fatal(err)
	}
	redisURL, natsURL := testserver.Redis(t).URL, testserver.NATS(t).URL
	server := newRoleServer(t)
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	config, listen := read(t, "deploy/compose/relay.yaml"), "listen: 0.0.0.0:7070"
	if !strings.Contains(config, listen) {
		t.Fatalf("deploy/compose/relay.yaml does not %s", listen)
	}
	config = strings.Replace(config, listen, fmt.Sprintf("listen: 127.0.0.1:%d", port), 1)
	// as returns a terminal with the environment of a service, on the test's servers.
	as := func(service string) *terminal {
		term := newTerminal(t, programs, "RELAY_CONFIG=relay.yaml")
		term.write("relay.yaml", config)
		for name, value := range file.Services[service].Environment {
			switch name {
			case "DATABASE_URL":
				value = server.at(t, value)
			case "REDIS_URL":
				value = redisURL
			case "NATS_URL":
				value = natsURL
			}
			term.env = append(term.env, name+"="+value)
		}
		return term
	}
	for name, service := range file.Services {
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("service %s: port %s is open to the network", name, port)
			}
		}
		if _, tag, _ := strings.Cut(service.Image, ":"); tag == "" || !exactTag.MatchString(tag) {
			t.Errorf("service %s: image %s is not pinned to one version", name, service.Image)
		}
		if service.MemLimit == "" || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("service %s has mem_limit %q and security_opt %q", name, service.MemLimit, service.SecurityOpt)
		}
		ours := !slices.Contains([]string{"postgres", "redis", "nats"}, name)
		if ours && (!service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"})) {
			t.Errorf("service %s has read_only %t and cap_drop %q", name, service.ReadOnly, service.CapDrop)
		}
	}

	for _, script := range file.mounted("postgres", "/docker-entrypoint-initdb.d") {
		server.psql(t, "", script)
	}
	as("migrate").must("relay " + strings.Join(file.Services["migrate"].Command, " "))
	grants := strings.ReplaceAll(file.Services["grants"].Command[2], "$$", "$")
	for _, script := range file.mounted("grants", "/sql") {
		grants = strings.ReplaceAll(grants, "/sql/"+filepath.Base(script), absolute(t, script))
	}
	as("grants").must(grants)

	relay := as("relay")
	run := relay.start("relay", file.Services["relay"].Command...)
	run.waitFor(&run.stderr, verbatim, "admin endpoint listening")
	if got := relay.must(healthCheck(t)); got != "ok" {
		t.Errorf("the health check prints %q", got)
	}
	example := func(service string) (string, []string) {
		words := file.Services[service].Entrypoint
		return strings.TrimPrefix(words[0], "/"), words[1:]
	}
	name, args := example("jetstream")
	consumer := as("jetstream").start(name, args...)
	name, args = example("producer")
	producer := as("producer").start(name, append(args, "-every", "1ms", "-orders", "200")...)
	producer.wait()

	var placed, shipped, refused int
	if _, err := fmt.Sscanf(producer.stdout.String(), "committed: %d orders placed, %d shipped; rolled back: %d", &placed, &shipped, &refused); err != nil {
		t.Fatalf("the producer prints %q: %v", producer.stdout.String(), err)
	}
	if placed != 160 || shipped != 80 || refused != 40 {
		t.Errorf("the producer prints %q", producer.stdout.String())
	}
	client := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(redisURL, "redis://")})
	defer client.Close()
	conn, err := nats.Connect(natsURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, func() error {
		orders, err := client.XLen(t.Context(), "orders.created").Result()
		if err != nil {
			return err
		}
		stream, err := js.Stream(t.Context(), "SHIPMENTS")
		if err != nil {
			return err
		}
		info, err := stream.Info(t.Context())
		if err != nil {
			return err
		}
		printed := len(regexp.MustCompile(`(?m)^Nats-Msg-Id: shipments:`).FindAllString(consumer.stdout.String(), -1))
		if int(orders) != placed || int(info.State.Msgs) != shipped || printed != shipped {
			return fmt.Errorf("%d orders, %d shipments and %d of them printed", orders, info.State.Msgs, printed)
		}
		return nil
	})
	if got := relay.must("relay doctor"); !strings.Contains(got, "\n0 problems, ") {
		t.Errorf("doctor prints %s", got)
	}
	server.leastPrivilege(t)
	for _, p := range []*process{run, consumer} {
		p.stop(os.Interrupt)
	}
	if _, err := relay.sh(healthCheck(t)); err == nil {
		t.Error("the health check of a relay that ended succeeds")
	}
}

var (
	// exactTag matches a whole version, or an image that is built here.
	exactTag  = regexp.MustCompile(`^(\d+\.\d+(\.\d+)?(-[a-z]+)?|local)$`)
	healthCmd = regexp.MustCompile(`(?m)^HEALTHCHECK .*CMD \["/([^]]+)"\]$`)
)

// healthCheck returns the command of the image's HEALTHCHECK.
func healthCheck(t *testing.T) string {
	t.Helper()
	m := healthCmd.FindStringSubmatch(read(t, "Dockerfile"))
	if m == nil {
		t.Fatal("the Dockerfile has no HEALTHCHECK")
	}
	return strings.ReplaceAll(m[1], `", "`, " ")
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
