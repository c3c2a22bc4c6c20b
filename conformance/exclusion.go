package conformance

var exclusionChecks = []Check{
	{"exclusion/free", "A free name is granted at once, without waiting, and it is free again after the release.", free},
	{"exclusion/clients", "While one client holds a name, no other client is granted it, however often it asks.", twoClients},
}

func free(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	for range 3 {
		for _, c := range []*client{a, b} {
			c.tryLock(name).unlock()
		}
	}
	return nil
}

func twoClients(e *env) error {
	a, b, name := e.client(), e.client(), e.name()
	h := a.lock(name)
	for range 20 {
		if err := b.refused(name); err != nil {
			return err
		}
	}
	h.unlock()
	return e.isFree(name)
}
