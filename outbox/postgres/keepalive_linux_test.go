package postgres

import (
	"net"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestConnectionsAreProbed: a machine that vanished is noticed within half a minute,
// by the pool's connections and by migrate's.
func TestConnectionsAreProbed(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	b, err := Open(Config{URL: url, Pipeline: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	conn, release, err := b.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	probed(t, conn.Conn().PgConn().Conn())

	config, err := pg.ConnConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	dialled, err := config.DialFunc(t.Context(), "tcp", net.JoinHostPort(config.Host, pg.Int(int64(config.Port))))
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	probed(t, dialled)
}

func probed(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name                string
		level, option, want int
	}{
		{"SO_KEEPALIVE", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
		{"TCP_KEEPINTVL", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 5},
		{"TCP_KEEPCNT", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
	} {
		var got int
		err := raw.Control(func(fd uintptr) { got, err = syscall.GetsockoptInt(int(fd), o.level, o.option) })
		if err != nil || got != o.want {
			t.Errorf("%s is %d, %v; want %d", o.name, got, err, o.want)
		}
	}
}
