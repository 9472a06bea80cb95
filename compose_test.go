package relay_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// testCompose runs the programs of docker-compose.yml with its commands and its
// configuration, on the test's own servers.
func testCompose(t *testing.T, programs string) {
	var file struct {
		Services map[string]struct {
			Entrypoint, Command, Ports []string
			Environment                map[string]string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &file); err != nil {
		t.Fatal(err)
	}
	redisURL, natsURL := testserver.Redis(t).URL, testserver.NATS(t).URL
	env := map[string]string{"DATABASE_URL": testserver.Postgres(t), "REDIS_URL": redisURL, "NATS_URL": natsURL}
	term := newTerminal(t, programs, "RELAY_CONFIG=relay.yaml")
	for name := range file.Services["relay"].Environment {
		if value, ok := env[name]; ok {
			term.env = append(term.env, name+"="+value)
		} else if name != "RELAY_CONFIG" {
			term.env = append(term.env, name+"=x")
		}
	}
	config, listen := read(t, "deploy/compose/relay.yaml"), "listen: 0.0.0.0:7070"
	if !strings.Contains(config, listen) {
		t.Fatalf("deploy/compose/relay.yaml does not %s", listen)
	}
	term.write("relay.yaml", strings.Replace(config, listen, `listen: ""`, 1))
	term.write("shop.sql", read(t, "examples/shop.sql"))
	for name, service := range file.Services {
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("service %s: port %s is open to the network", name, port)
			}
		}
	}

	term.must(`psql "$DATABASE_URL" -q -f shop.sql`)
	example := func(service string) (string, []string) {
		words := file.Services[service].Entrypoint
		return strings.TrimPrefix(words[0], "/"), words[1:]
	}
	term.must("relay " + strings.Join(file.Services["migrate"].Command, " "))
	run := term.start("relay", file.Services["relay"].Command...)
	name, args := example("jetstream")
	consumer := term.start(name, args...)
	name, args = example("producer")
	producer := term.start(name, append(args, "-every", "1ms", "-orders", "200")...)
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
	for _, p := range []*process{run, consumer} {
		p.stop(os.Interrupt)
	}
}
