package redlock

// listen has wake receive a value when the end of a hold of name is told at a node.
func (d *Driver) listen(_ int, _ string) (wake <-chan struct{}, leave func()) {
	return nil, func() {}
}
