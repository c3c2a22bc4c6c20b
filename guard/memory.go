package guard

import "sync"

// Memory keeps the largest token of each name in the process, for a resource in
// the same process. The zero value is ready to use. Memory never forgets a
// token. All methods may be called concurrently.
type Memory struct {
	mu     sync.Mutex
	tokens map[string]int64
}

// Write admits a write by the holder whose token is token, and keeps the token.
// It returns ErrStale if a later writer was admitted. If the write continues
// after Write has returned, another write may begin in the meantime. So hold a
// mutex of the resource during both the call and the write. Read the data that
// the write depends on after Write has returned, under the same mutex.
func (m *Memory) Write(name string, token uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.admit(name, token); err != nil {
		return err
	}
	if m.tokens == nil {
		m.tokens = map[string]int64{}
	}
	m.tokens[name] = int64(token)
	return nil
}

// Read admits a read by a holder in mode Read whose token is token. It returns
// ErrStale if a later writer was admitted. Read does not keep the token.
func (m *Memory) Read(name string, token uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.admit(name, token)
}

// admit is called with mu held.
func (m *Memory) admit(name string, token uint64) error {
	if err := check(name, token); err != nil {
		return err
	}
	return compare(name, token, m.tokens[name])
}
