-- Returns {remaining milliseconds of the lock KEYS[1], last token in KEYS[2] if that is given, fields and values of the lock}.
return {redis.call('PTTL', KEYS[1]), KEYS[2] and redis.call('GET', KEYS[2]) or '', redis.call('HGETALL', KEYS[1])}
