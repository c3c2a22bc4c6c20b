package zk

import "time"

// CheckAfter sets how old a hold has to be for a watch of its own node.
func (d *Driver) CheckAfter(age time.Duration) { d.checkAfter.Store(int64(age)) }
