-- Marks the lock KEYS[1], if ARGV[1] holds that, by the key KEYS[2], which has
-- the floor ARGV[2] and stays for ever. It takes a token above the floor out of
-- the sequence KEYS[3], if that is given, which is of the kind ARGV[3]; ARGV[4]
-- is the text about the hold. Returns the token (1 if there is none), or 0 if
-- there is no such hold.
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local floor = math.max(tonumber(ARGV[2]), tonumber(call('GET', KEYS[2]) or '0'))
call('SET', KEYS[2], string.format('%.0f', floor))
if not KEYS[3] then return 1 end
raise(KEYS[3], ARGV[3], floor)
local first, _, value = take(KEYS[3], '1', ARGV[3], ARGV[4])
if string.sub(ARGV[1], -5) ~= ':read' then call('HSET', KEYS[1], ARGV[1], value) end
return first
