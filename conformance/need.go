package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync"
	"github.com/go-dsync/dsync/driver"
)

// refusedError ends a check of something that the driver does not claim. The driver was seen to refuse it.
type refusedError struct{ capability string }

func (e *refusedError) Error() string { return "the driver does not claim " + e.capability }

// missingError ends a check that the harness is not able to run.
type missingError struct{ ability string }

func (e *missingError) Error() string { return "the harness has no " + e.ability }

// need ends the check as not verified unless the harness is able to do something.
func (e *env) need(able bool, ability string) {
	if !able {
		e.end(&missingError{ability})
	}
}

// capability is something that not every driver can do.
type capability struct {
	name    string
	claimed func(*client) bool
	refused func(*client) error // the answer of package dsync when it is asked for all the same
}

var (
	inspection = capability{
		name:    "inspection",
		claimed: func(c *client) bool { return c.claims(c.Inspect) },
		refused: func(c *client) error { return c.Inspect(c.env.ctx, c.env.name()) },
	}
	forceUnlock = capability{
		name:    "forced unlocking",
		claimed: func(c *client) bool { return c.claims(c.ForceUnlock) },
		refused: func(c *client) error { return c.ForceUnlock(c.env.ctx, c.env.name()) },
	}
	fencing = capability{
		name:    "fencing tokens",
		claimed: func(c *client) bool { return c.tap.Info().Fencing != driver.None },
		refused: func(c *client) error { return c.requires(driver.Require{Fenced: true}) },
	}
	fairness = capability{
		name:    "a fair order",
		claimed: func(c *client) bool { return c.tap.Info().Order != driver.Unordered },
		refused: func(c *client) error { return c.requires(driver.Require{Fair: true}) },
	}
	arrivalOrder = capability{
		name:    "an order of arrival",
		claimed: func(c *client) bool { return c.tap.Info().Order == driver.FIFO },
		refused: func(c *client) error { return c.requires(driver.Require{FIFO: true}) },
	}
)

// claims ends the check unless the driver claims a capability; before that it checks that the driver refuses it.
func (e *env) claims(k capability) {
	c := e.client()
	if k.claimed(c) {
		return
	}
	if err := k.refused(c); !errors.Is(err, errors.ErrUnsupported) {
		e.endf("the driver does not claim %s, but package dsync answered %q to a call for it instead of errors.ErrUnsupported", k.name, outcome(err))
	}
	e.end(&refusedError{k.name})
}

// requires returns the error of dsync.New for a requirement.
func (c *client) requires(r driver.Require) error {
	other, err := dsync.New(c.tap, &dsync.Options{TTL: c.env.long(), Require: r})
	if err == nil {
		return fmt.Errorf("a client %v", other.Info().Name)
	}
	return err
}

// claims reports whether the driver can answer a call for a name.
func (c *client) claims(call func(context.Context, string) error) bool {
	return !errors.Is(call(c.env.ctx, c.env.name()), errors.ErrUnsupported)
}
