package zk

import "time"

// CheckAfter sets how old a hold has to be for a watch of its own node.
func (d *Driver) CheckAfter(age time.Duration) { d.checkAfter.Store(int64(age)) }

// NudgeAfter sets how long a server may be silent before it gets a nudge.
func (d *Driver) NudgeAfter(quiet time.Duration) { d.nudgeAfter.Store(int64(quiet)) }
