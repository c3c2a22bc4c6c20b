local call = redis.call

-- most is how many members one command takes.
local most = 1000

-- overwritten reports whether an answer says that the key of a lock is something else. Then somebody has overwritten the lock, and no hold is left.
local function overwritten(answer) return type(answer) == 'table' and string.find(answer.err, 'WRONGTYPE', 1, true) end

-- publish publishes on a channel, and returns how many subscribers were told.
local function publish(message, channel, word, word2)
  local told = call(word, channel, message)
  if word2 ~= '' then told = told + call(word2, channel, message) end
  return told
end
