package testenv

import "crypto/rand"

// PasswordMark is in every password of the tests and nowhere else. It needs no
// escaping. `make test` fails if the output of the tests contains it (.ci/test).
const PasswordMark = "never-shown-"

// Password returns a new password. One with special characters is made by adding them.
func Password() string { return PasswordMark + rand.Text()[:8] }
