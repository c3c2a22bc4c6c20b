-- The waiters of a fair lock are in a list, queue, in the order in which they came, and in a sorted set, times, with the time in
-- milliseconds from which on others may throw them out, once they are first. Each listens on channel .. ':' .. hold.

-- patience is how long after the end of the hold that it waits for a waiter of this driver may be thrown out, unless it asks
-- again. A waiter of Redisson has default, or the limit of its wait.
local patience, default = 15000, 300000

-- along is by how much the time of a waiter that is not first has to change until it is set anew, with those of all behind.
local along = 60000

-- deaf is how long a waiter may leave a free lock alone that does not even listen. One that is told, and does not come, has patience:
-- its process is frozen, or cut off while the server still has its subscription.
local deaf = 5000

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function timeOf(times, hold)
  local time = call('ZSCORE', times, hold)
  return time and tonumber(time)
end

-- move gives waiters so many milliseconds more.
local function move(times, holds, by)
  for _, hold in ipairs(holds) do
    if call('ZSCORE', times, hold) then call('ZINCRBY', times, string.format('%.0f', by), hold) end
  end
end

-- head throws out those in front whose time is over, and returns who is first then, or false. Who asks is alive: if its own time is
-- over, it gets more, and so do those behind it.
local function head(queue, times, now, asks)
  while true do
    local first = call('LINDEX', queue, 0)
    local time = first and timeOf(times, first)
    if not time or time > now then return first end
    if first == asks then
      move(times, call('LRANGE', queue, 0, -1), now + patience - time)
    else
      call('LPOP', queue)
      call('ZREM', times, first)
    end
  end
end

-- leave takes a hold out of the queue. What those behind then wait for ends at base, or, if there is one before, at the time of that,
-- but not before all those in front have had a wait of default each, which they take off the times of those behind. They keep their
-- distance to that, though none that is next gets less than patience.
local function leave(queue, times, hold, base)
  local at = call('LPOS', queue, hold)
  if not at then
    call('ZREM', times, hold)
    return
  end
  local behind = call('LRANGE', queue, at + 1, -1)
  if at > 0 then base = math.max(base + at * default, timeOf(times, call('LINDEX', queue, at - 1)) or 0) end
  local time = timeOf(times, hold)
  call('LREM', queue, 0, hold)
  call('ZREM', times, hold)
  local following = behind[1] and timeOf(times, behind[1])
  if not time or not following then return end
  local by = math.max(base - time, base + patience - following)
  if by < 0 then move(times, behind, by) end
end

-- tell publishes on the channel of a waiter, and returns how many heard it.
local function tell(hold, channel, word, word2)
  channel = channel .. ':' .. hold
  local told = call(word, channel, '0')
  if word2 ~= '' then told = told + call(word2, channel, '0') end
  return told
end

-- stay puts a hold into the queue, unless it is there: last, or if it was there before, and so was first when it was thrown out,
-- first again. It sets its time anew, and takes those behind along, the waiters of Redisson among them, who do not ask again. Their
-- distance to it has to stay: it is what they have left when it and those in front of it have taken their waits off their times.
local function stay(queue, times, hold, again, free)
  local at = call('LPOS', queue, hold)
  local before = timeOf(times, hold)
  local time = free + patience
  if not at and again then
    call('LPUSH', queue, hold)
    at, before = 0, free
  elseif not at then
    at = call('RPUSH', queue, hold) - 1
  end
  if at > 0 then -- whoever of Redisson gets the lock takes its wait off the times of all behind
    local previous = timeOf(times, call('LINDEX', queue, at - 1)) or free
    time = math.max(time + along + at * default, previous + patience)
    if before and math.abs(time - before) < along then return end
  end
  if before then move(times, call('LRANGE', queue, at + 1, -1), time - before) end
  call('ZADD', times, string.format('%.0f', time), hold)
end

-- acquireFair is acquire for a lock with a queue. How is 'try' for a hold that does not wait, 'wait', or 'again' for one that was
-- put into the queue before. Count is '' where nobody knows how many a message reaches.
local function acquireFair(name, queue, times, hold, ttl, how, channel, word, word2, count, token, n, keep)
  local now = clock()
  local first = head(queue, times, now, hold)
  local left = call('PTTL', name)
  if left == -2 and (not first or first == hold) then
    if first then leave(queue, times, hold, now + ttl) end
    return acquire(name, hold, ttl, token, n, keep)
  elseif left ~= -2 and call('HEXISTS', name, hold) == 1 then
    return acquire(name, hold, ttl, token, n, keep)
  end
  if how ~= 'try' then stay(queue, times, hold, how == 'again', now + math.max(left, 0)) end
  if left == -1 then return 0 end
  if left >= 0 then return -1 - left end
  -- It is somebody else's turn, who was told, unless that was lost with a connection, or who is dead.
  first = call('LINDEX', queue, 0)
  if first ~= hold then
    local limit = patience
    if tell(first, channel, word, word2) == 0 and count ~= '' then limit = deaf end
    -- Those behind keep their times: it may be about to come, and if it is one of Redisson, it takes its wait off them.
    local time = timeOf(times, first)
    if time and time > now + limit then call('ZADD', times, string.format('%.0f', now + limit), first) end
  end
  return -1 - 500
end

-- releaseFair ends a hold, be it in the queue or of the lock, and tells the next if the lock is free. It returns how many wait, or
-- -1 if the hold did not have the lock.
local function releaseFair(name, queue, times, hold, channel, word, word2)
  local now = clock()
  local held = call('HDEL', name, hold)
  local left = call('PTTL', name)
  leave(queue, times, hold, now + math.max(left, 0))
  local first = head(queue, times, now)
  if first and left == -2 then tell(first, channel, word, word2 or '') end
  if held == 0 then return -1 end
  return call('LLEN', queue)
end
