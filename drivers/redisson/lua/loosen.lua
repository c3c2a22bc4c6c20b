-- Writes the id ARGV[1] next to the seal of the lock KEYS[1]. If ARGV[2] is not '0' the tokens, in KEYS[2], are above it from then on;
-- that key stays for ever, and ARGV[3] is 'time' where tokens are the time. Returns 1, or 0 if the lock is not sealed.
local call = redis.call
if call('HEXISTS', KEYS[1], 'dsync:seal') == 0 then return 0 end
call('HSET', KEYS[1], 'dsync:unseal', ARGV[1])
if ARGV[2] == '0' then return 1 end
local last = tonumber(call('GET', KEYS[2]) or '0')
if ARGV[3] == 'time' then
  local time = call('TIME')
  last = math.max(last, time[1] * 1000000 + time[2])
end
call('SET', KEYS[2], string.format('%.0f', math.max(last, tonumber(ARGV[2]))))
return 1
