package memory

// Names returns how many names s keeps anything of.
func (s *Server) Names() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}

// Sessions returns how many sessions d keeps alive, and Behind how many holds it has yet to end.
func (d *Driver) Sessions() int {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	return len(d.sessions)
}

func (d *Driver) Behind() int {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	return len(d.behind)
}
