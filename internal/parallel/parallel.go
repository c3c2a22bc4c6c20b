// Package parallel runs calls concurrently, several at a time.
package parallel

import "sync"

// Each calls do with 0 to n-1, at most atOnce calls at a time, and returns when
// all calls have returned.
func Each(n, atOnce int, do func(i int)) {
	slots := make(chan struct{}, atOnce)
	var calls sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		calls.Go(func() { // ends with do
			do(i)
			<-slots
		})
	}
	calls.Wait()
}
