local call = redis.call

-- release ends a hold of the lock name and tells the waiters on the channel by the commands word and, unless it is nil, word2.
-- It returns how many subscribers were told, or -1 if there is no such hold.
local function release(name, hold, channel, word, word2)
  if call('HDEL', name, hold) == 0 then return -1 end
  local told = call(word, channel, '0')
  if word2 then told = told + call(word2, channel, '0') end
  return told
end
