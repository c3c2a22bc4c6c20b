-- Returns 1 if there is the mark KEYS[1], else 0.
return redis.call('EXISTS', KEYS[1])
