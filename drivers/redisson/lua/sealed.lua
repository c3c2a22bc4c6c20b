-- Returns the last token that was granted of the lock KEYS[1], or '0', if that is sealed; else nil.
return redis.call('HGET', KEYS[1], 'dsync:seal')
