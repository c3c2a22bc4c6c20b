-- Writes the id ARGV[1] next to the seal of the lock KEYS[1]. If ARGV[2] is not
-- '0', the tokens of the sequence KEYS[2], which is of the kind ARGV[3], are
-- above it from then on. Returns 1, or 0 if the lock is not sealed.
if call('HEXISTS', KEYS[1], 'dsync:seal') == 0 then return 0 end
call('HSET', KEYS[1], 'dsync:unseal', ARGV[1])
if ARGV[2] ~= '0' then raise(KEYS[2], ARGV[3], tonumber(ARGV[2])) end
return 1
