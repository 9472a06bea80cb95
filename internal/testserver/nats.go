package testserver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSServer is a NATS server in this process. Its methods are safe for concurrent use.
type NATSServer struct {
	URL string

	opts server.Options
	mu   sync.Mutex
	run  *server.Server // nil: not running
}

// StartNATS starts a NATS server with JetStream and its file store in dir, or without
// JetStream if dir is "". configure may change the options. The caller calls Stop.
func StartNATS(dir string, configure ...func(*server.Options)) (*NATSServer, error) {
	port, err := FreePort()
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

// Start starts a stopped server with its port and data, and returns when it is ready.
func (s *NATSServer) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		return errors.New("the NATS server is running already")
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
		return fmt.Errorf("starting NATS: not ready within %v", startTimeout)
	}
	s.run = run
	return nil
}

// Stop stops the server, closes its connections and keeps its data. It does nothing if the
// server is not running.
func (s *NATSServer) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		s.run.Shutdown()
		s.run.WaitForShutdown()
		s.run = nil
	}
}
