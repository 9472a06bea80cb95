package testserver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSServer is a NATS server of one's own, in this process. Its methods are
// safe for concurrent use.
type NATSServer struct {
	URL string

	opts server.Options
	mu   sync.Mutex
	run  *server.Server // nil: not running
}

// StartNATS starts a NATS server with JetStream, whose file store is in dir; with
// dir "" one without JetStream. configure, where given, changes the options
// further. Stop it in the end.
func StartNATS(dir string, configure ...func(*server.Options)) (*NATSServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &NATSServer{opts: server.Options{
		Host: "127.0.0.1", Port: port,
		JetStream: dir != "", StoreDir: dir,
		NoLog: true, NoSigs: true,
	}}
	for _, f := range configure {
		f(&s.opts)
	}
	s.URL = fmt.Sprintf("nats://127.0.0.1:%d", s.opts.Port)
	return s, s.Start()
}

// Start starts a stopped server again, on the same port and data, and returns
// when it answers.
func (s *NATSServer) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		return errors.New("the NATS server runs already")
	}
	opts := s.opts // the server writes into its options
	run, err := server.NewServer(&opts)
	if err != nil {
		return fmt.Errorf("starting NATS: %w", err)
	}
	run.Start()
	if !run.ReadyForConnections(startTimeout) {
		run.Shutdown()
		run.WaitForShutdown()
		return fmt.Errorf("starting NATS: it was not ready within %v", startTimeout)
	}
	s.run = run
	return nil
}

// Stop ends the server, cutting its connections; its data stays. Nothing happens
// if it does not run.
func (s *NATSServer) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.Shutdown()
		s.run.WaitForShutdown()
		s.run = nil
	}
}
