-- Gives the hold ARGV[2i-1] of the lock KEYS[i] ARGV[2i] milliseconds from now, for each i.
-- Returns a character for each: 1 done, 0 there is no such hold, p not permitted, e something else is wrong with the key.
local done = {}
for i, name in ipairs(KEYS) do
  local held = redis.pcall('HEXISTS', name, ARGV[2 * i - 1])
  if held == 1 then held = redis.pcall('PEXPIRE', name, ARGV[2 * i]) end
  if type(held) == 'number' then
    done[i] = held
  elseif held.err and string.find(held.err, 'WRONGTYPE', 1, true) then
    done[i] = 0
  elseif string.find(held.err, 'NOPERM', 1, true) or string.find(held.err, 'The user executing the script', 1, true) then
    done[i] = 'p'
  else
    done[i] = 'e'
  end
end
return table.concat(done)
