package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// takeRedisDatabase finds an empty logical database of a server and notes, in
// database 0, that it is taken, for test processes side by side.
func takeRedisDatabase(ctx context.Context, serverURL string) (databaseURL string, release func(context.Context) error, err error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", nil, errors.New("RELAY_TEST_REDIS_URL is not a URL") // without the password url.Parse would show
	}
	use := func(ctx context.Context, db int, f func(*redis.Client) error) error {
		u := *u
		u.Path = "/" + strconv.Itoa(db)
		opts, err := redis.ParseURL(u.String())
		if err != nil {
			return errors.New("RELAY_TEST_REDIS_URL is not the URL of a Redis server")
		}
		c := redis.NewClient(opts)
		return errors.Join(f(c), c.Close())
	}
	take := func(note string) (taken bool, err error) {
		err = use(ctx, 0, func(c *redis.Client) error {
			// It expires for the sake of a process that was killed.
			taken, err = c.SetNX(ctx, note, rand.Text(), time.Hour).Result()
			return err
		})
		return taken, err
	}
	for db := 1; ; db++ {
		note := fmt.Sprintf("relay-test-database:%d", db)
		taken, err := take(note)
		if err != nil {
			return "", nil, err
		}
		if !taken {
			continue
		}
		giveBack := func(ctx context.Context) error {
			return use(ctx, 0, func(c *redis.Client) error { return c.Del(ctx, note).Err() })
		}
		var size int64
		err = use(ctx, db, func(c *redis.Client) error {
			size, err = c.DBSize(ctx).Result()
			return err
		})
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("looking for an empty database in the Redis server: %w", err), giveBack(ctx))
		}
		if size > 0 {
			if err := giveBack(ctx); err != nil {
				return "", nil, err
			}
			continue
		}
		u.Path = "/" + strconv.Itoa(db)
		return u.String(), func(ctx context.Context) error {
			flush := use(ctx, db, func(c *redis.Client) error { return c.FlushDB(ctx).Err() })
			return errors.Join(flush, giveBack(ctx))
		}, nil
	}
}
