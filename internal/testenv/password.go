package testenv

import "crypto/rand"

// PasswordMark is in every password of the tests, and in nothing else: whatever shows it shows a password. It looks the same wherever
// a password has to be escaped. `make test` fails when it is in what tests write (internal/testscan).
const PasswordMark = "never-shown-"

// Password returns a new password. One with special characters is made by adding them.
func Password() string { return PasswordMark + rand.Text()[:8] }
