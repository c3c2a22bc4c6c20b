-- releaseWrite ends a hold that writes, and what it intended if intent is not nil, and tells who waits. It returns how many were told, or -1
-- if there is no such hold.
local function releaseWrite(name, intent, hold, prefix, channel, word, word2, ...)
  local intended = intent and call('HDEL', intent, hold) == 1
  local there = redis.pcall('HEXISTS', name, hold)
  if type(there) == 'table' and not overwritten(there) then call('HEXISTS', name, hold) end -- the error again
  there = there == 1
  if there then call('DEL', name) end
  local told = (there or intended) and publish('1', channel, word, word2)
  if there then tellFair(...) end
  return there and told or -1
end
