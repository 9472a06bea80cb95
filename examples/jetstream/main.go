// Command jetstream creates a JetStream stream, if it does not exist, and prints all of its messages, old and new.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	url := flag.String("url", os.Getenv("NATS_URL"), "NATS server; nats://127.0.0.1:4222 when empty")
	name := flag.String("stream", "ORDERS", "the stream")
	subjects := flag.String("subjects", "orders.>", "its subjects")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *url == "" {
		*url = nats.DefaultURL
	}
	if err := run(ctx, *url, *name, *subjects); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, name, subjects string) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w; start nats-server with -js", servers(url), err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects},
		Duplicates: time.Hour, // an event that the relay sends again within it is dropped
	})
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%s is without JetStream: %w; start nats-server with -js", servers(url), err)
	}
	if err != nil {
		return fmt.Errorf("making stream %s on %s: %w", name, servers(url), err)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		fmt.Printf("%s\n%s%s\n\n", m.Subject(), text(m.Headers()), m.Data())
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	<-ctx.Done()
	return nil
}

// servers returns the addresses in url, without user, password and token.
func servers(url string) string {
	all := strings.Split(url, ",")
	for i, server := range all {
		all[i] = server[strings.LastIndexAny(server, "@/")+1:]
	}
	return strings.Join(all, ", ")
}

// text formats the headers, one a line, sorted.
func text(h nats.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(h[name], ", "))
	}
	return b.String()
}
