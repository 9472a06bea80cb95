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

// acquireRedisDatabase finds an empty logical database of a server. A key in database 0
// reserves it, because several test processes may share the server.
func acquireRedisDatabase(ctx context.Context, serverURL string) (databaseURL string, release func(context.Context) error, err error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", nil, errors.New("RELAY_TEST_REDIS_URL is not a URL") // url.Parse's error contains the password
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
	reserve := func(lock string) (reserved bool, err error) {
		err = use(ctx, 0, func(c *redis.Client) error {
			// It expires in case the process is killed.
			reserved, err = c.SetNX(ctx, lock, rand.Text(), time.Hour).Result()
			return err
		})
		return reserved, err
	}
	for db := 1; ; db++ {
		lock := fmt.Sprintf("relay-test-database:%d", db)
		reserved, err := reserve(lock)
		if err != nil {
			return "", nil, err
		}
		if !reserved {
			continue
		}
		unreserve := func(ctx context.Context) error {
			return use(ctx, 0, func(c *redis.Client) error { return c.Del(ctx, lock).Err() })
		}
		var size int64
		err = use(ctx, db, func(c *redis.Client) error {
			size, err = c.DBSize(ctx).Result()
			return err
		})
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("looking for an empty database in the Redis server: %w", err), unreserve(ctx))
		}
		if size > 0 {
			if err := unreserve(ctx); err != nil {
				return "", nil, err
			}
			continue
		}
		u.Path = "/" + strconv.Itoa(db)
		return u.String(), func(ctx context.Context) error {
			flush := use(ctx, db, func(c *redis.Client) error { return c.FlushDB(ctx).Err() })
			return errors.Join(flush, unreserve(ctx))
		}, nil
	}
}
