package stress

import "github.com/go-dsync/dsync/driver"

// plant puts a bug into a driver.
func plant(name string, d driver.Driver, _ string) driver.Driver {
	if name == "" {
		return d
	}
	panic("unknown plant " + name)
}
