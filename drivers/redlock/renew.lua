-- Lets each lock KEYS[i] that has the value ARGV[i + 1] last ARGV[1] milliseconds from now, or as long as before if ARGV[1] is 0.
-- Returns a character for each: 1 done, 0 it has another value or none.
local call, try, values = redis.call, redis.pcall, ARGV
local time = call('TIME') -- stands still while a script runs
-- A server turns each PEXPIRE into a PEXPIREAT. To say the end for all saves it that.
local ends = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + values[1])
local done = {}
for i, name in ipairs(KEYS) do
  if try('GET', name) == values[i + 1] then
    if values[1] ~= '0' then call('PEXPIREAT', name, ends) end
    done[i] = '1'
  else
    done[i] = '0'
  end
end
return table.concat(done)
