-- Lets each lock KEYS[i] that has the value ARGV[i + 1] last ARGV[1] milliseconds from now.
-- Returns a character for each: 1 done, 0 it has another value or none.
local done = {}
for i, name in ipairs(KEYS) do
  if redis.pcall('GET', name) == ARGV[i + 1] then
    redis.call('PEXPIRE', name, ARGV[1])
    done[i] = '1'
  else
    done[i] = '0'
  end
end
return table.concat(done)
