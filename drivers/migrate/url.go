package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-dsync/dsync/driver"
)

func init() { driver.Register("migrate", open) }

func open(ctx context.Context, c *driver.Config) (driver.Driver, error) {
	u := c.URL
	from, to, phase, gated := u.Param("from", ""), u.Param("to", ""), u.Param("phase", ""), u.Bool("gate", false)
	if err := u.Err(); err != nil {
		return nil, err
	}
	p, known := parsePhase(phase)
	switch {
	case u.User != nil || len(u.Hosts) > 0 || u.Path != "":
		return nil, errors.New("migrate URL: want only parameters, without user, host or path")
	case from == "" || to == "":
		return nil, errors.New("migrate URL: parameters from and to must be the URLs of two backends, with special characters as %XX")
	case from == to:
		return nil, errors.New("migrate URL: parameters from and to are the same")
	case !known:
		return nil, fmt.Errorf("migrate URL: parameter phase: %q is not dual or new, or old with a gate", phase)
	case c.Floor > 0:
		return nil, errors.New("migrate URL: parameter floor belongs to the URLs of the two backends")
	}
	a, ofA, err := openPart(ctx, "from", from, c.TTL)
	if err != nil {
		return nil, err
	}
	b, ofB, err := openPart(ctx, "to", to, c.TTL)
	if err != nil {
		return nil, errors.Join(err, a.Close(ctx))
	}
	d, err := New(a, b, &Options{Phase: p, Unfenced: !c.Fenced, Gated: gated, TTL: c.TTL, FromFloor: ofA.Floor, ToFloor: ofB.Floor})
	if err == nil && c.Require.Fenced && !c.Fenced {
		err = errors.New("migrate URL: fenced=false contradicts require=fenced")
	}
	if err == nil && c.Require.Fenced && d.info.Fencing == driver.None {
		err = fmt.Errorf("migrate: tokens are required, but at least one backend has none (%s: %v, %s: %v): %w",
			d.from.info.Name, d.from.info.Fencing, d.to.info.Name, d.to.info.Fencing, errors.ErrUnsupported)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close(ctx), b.Close(ctx))
	}
	if err = d.Check(ctx); err == nil && gated {
		err = d.SetPhase(ctx, p)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(ctx))
	}
	return d, nil
}

// marked adds HoldPrefix to the names of PostgreSQL sessions, because
// PostgreSQL does not store the identity of a hold.
func marked(raw string) string {
	const name = "application_name="
	before, after, ok := strings.Cut(raw, name)
	switch {
	case !strings.HasPrefix(raw, "pglock:"):
		return raw
	case ok:
		return before + name + HoldPrefix + after
	case strings.Contains(raw, "?"):
		return raw + "&" + name + HoldPrefix + "dsync"
	}
	return raw + "?" + name + HoldPrefix + "dsync"
}

// openPart opens one of the two backends. The parameters that all drivers share
// belong to the migrate URL and apply to both backends.
func openPart(ctx context.Context, which, url string, ttl time.Duration) (driver.Driver, *driver.Config, error) {
	d, c, err := driver.OpenTTL(ctx, marked(url), ttl)
	if err != nil {
		return nil, nil, fmt.Errorf("migrate URL: parameter %s: %w", which, err)
	}
	if c.URL.Has("ttl") {
		err = fmt.Errorf("migrate URL: parameter %s has a ttl, which belongs to the migrate URL itself", which)
		return nil, nil, errors.Join(err, d.Close(ctx))
	}
	return d, c, nil
}
