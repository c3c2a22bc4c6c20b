package stress

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-dsync/dsync/driver"
	"github.com/go-dsync/dsync/drivers/memory"
)

// memoryFault carries out a fault in the process that contains the backend.
func memoryFault(w *worker, kind string, client int) error {
	d, ok := w.drivers[client].(*memory.Driver)
	if !ok {
		return fmt.Errorf("%s: no fault of this backend", kind)
	}
	switch kind {
	case "cut":
		d.Cut()
	case "hang":
		d.Inject(memory.Fault{Kind: memory.Hang})
	case "lose":
		d.Inject(memory.Fault{Kind: memory.LoseAnswer})
	case "heal":
		d.Heal()
	case "remove":
		for _, name := range append([]string{w.Patient, w.Long}, w.Names...) {
			if err := d.ForceUnlock(context.Background(), name); err != nil && !errors.Is(err, driver.ErrNotHeld) {
				return err
			}
		}
	default:
		return fmt.Errorf("unknown fault %q", kind)
	}
	return nil
}
