package bench

var (
	redlockBackend, etcdBackend, zkBackend, pgBackend *Backend
)
