//go:build examples

package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// language describes how to run an example in its folder.
type language struct {
	folder string
	// needs succeeds if the interpreter and its libraries are installed.
	needs string
	run   string
	// readsBack reports whether its library reads back the inserted id.
	readsBack bool
}

var languages = []language{
	{
		folder: "rails", readsBack: true,
		needs: `ruby -e 'require "active_record"; require "pg"'`,
		run:   `ruby run.rb`,
	},
	{
		folder: "laravel",
		needs:  `php -r 'require getenv("AUTOLOAD") ?: "Illuminate/Database/autoload.php"; exit(extension_loaded("pdo_pgsql") ? 0 : 1);'`,
		run:    `php run.php`,
	},
	{
		folder: "django", readsBack: true,
		needs: `"${PYTHON:-python3}" -c 'from django.db.backends.postgresql import base'`,
		run:   `"${PYTHON:-python3}" -B run.py`,
	},
	{
		folder: "nodejs",
		needs:  `node -e 'require("pg")'`, // npm install, or NODE_PATH
		run:    `node run.mjs`,
	},
	{
		folder: "java",
		needs:  `javac -version && test -f "${JDBC:-/usr/share/java/postgresql.jar}"`,
		run:    `jar="${JDBC:-/usr/share/java/postgresql.jar}"; javac -cp "$jar" -d "$OUT" *.java && java -cp "$jar:$OUT" Run`,
	},
}

// Without a transaction around both, shop.sql rejects an order of an unknown customer
// before its event is inserted. This trigger rejects the event instead, at COMMIT, and
// the order must disappear with it.
const refuseTheEvent = `
ALTER TABLE orders DROP CONSTRAINT orders_customer_id_fkey;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN RAISE foreign_key_violation USING MESSAGE = 'unknown customer'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox_events DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.key = 'unknown') EXECUTE FUNCTION refuse();`

// TestLanguages places two orders, twice, in each installed language.
// One commits together with its event. The other is rejected at COMMIT, and neither
// of the two exists.
func TestLanguages(t *testing.T) {
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	var ran, missing []string
	for _, l := range languages {
		if out, err := l.command(t, l.needs, "").CombinedOutput(); err != nil {
			t.Logf("%s: %v %s", l.needs, err, out)
			missing = append(missing, l.folder)
			continue
		}
		ran = append(ran, l.folder)
		t.Run(l.folder, func(t *testing.T) { l.test(t, server) })
	}
	t.Logf("ran: %v; not installed here: %v", ran, missing)
}

func (l language) command(t *testing.T, script, url string) *exec.Cmd {
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = l.folder
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "OUT="+t.TempDir())
	return cmd
}

func (l language) test(t *testing.T, server *testserver.PostgresServer) {
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Migrate(t.Context(), database, postgres.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	shop, err := os.ReadFile("shop.sql")
	if err != nil {
		t.Fatal(err)
	}
	role, password := "shop_"+l.folder, "a:b/c%d@e"
	grants := fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s';
		GRANT SELECT ON customers TO %[1]s;
		GRANT SELECT, INSERT ON orders TO %[1]s;
		GRANT INSERT ON outbox_events TO %[1]s;`, role, password)
	if l.readsBack {
		grants += fmt.Sprintf("GRANT SELECT (id) ON outbox_events TO %s;", role)
	}
	if _, err := conn.Exec(t.Context(), string(shop)+grants); err != nil {
		t.Fatal(err)
	}

	_, where, _ := strings.Cut(database, "@")
	place := func() {
		t.Helper()
		out, err := l.command(t, l.run, "postgres://"+role+":a%3Ab%2Fc%25d%40e@"+where).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "one order placed, one rolled back\n") {
			t.Errorf("%s: %v\n%s", l.run, err, out)
		}
	}
	place()
	if _, err := conn.Exec(t.Context(), refuseTheEvent); err != nil {
		t.Fatal(err)
	}
	place()

	var orders, events, good int
	err = conn.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_events),
		       count(*) FROM outbox_events e JOIN orders o
		       ON e.payload::jsonb = jsonb_build_object('order', o.id, 'cents', o.cents) AND e.key = o.customer_id
		       WHERE e.topic = 'orders.created' AND e.headers ->> 'source' <> '' AND e.group_id IS NULL
		       AND clock_timestamp() - e.created_at BETWEEN '0s' AND '1min'`).Scan(&orders, &events, &good)
	if err != nil {
		t.Fatal(err)
	}
	if orders != 2 || events != 2 || good != 2 {
		t.Errorf("%d orders, %d events, %d of them correct; expected 2 of each", orders, events, good)
	}
}
