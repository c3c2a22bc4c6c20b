-- holdsIn returns the holds of a list, each in a line of its own.
local function holdsIn(list)
  local holds = {}
  for hold in string.gmatch(list, '[^\n]+') do holds[#holds + 1] = hold end
  return holds
end

-- pass takes out of the line holds of a run that had the lock in turn.
local function pass(line, served)
  local holds = holdsIn(served)
  for _, hold in ipairs(holds) do line.length = line.length - call('LREM', line.queue, '1', hold) end
  call('ZREM', line.times, unpack(holds))
end

-- follow returns how many of the holds behind stand in the line in this order, from the front on. They are the run of a hold that got the lock
-- for ttl milliseconds: their client passes the lock on to them itself. If it dies, all of them have been thrown out deaf milliseconds after the end of
-- that hold, and those behind keep their distance, as in leave.
local function follow(line, behind, ttl)
  local holds, n = holdsIn(behind), 0
  for i, hold in ipairs(call('LRANGE', line.queue, '0', #holds - 1)) do
    if hold ~= holds[i] then break end
    n = i
  end
  local last = n > 0 and timeOf(line, holds[n])
  if not last then return 0 end
  local time, times = clock() + ttl + deaf, {}
  for i = 1, n do
    times[2 * i - 1], times[2 * i] = string.format('%.0f', time), holds[i]
  end
  call('ZADD', line.times, unpack(times))
  local others, by = line.length - n, time - last
  if others > 0 and (by > 0 or -by > 2 * along + others * default / spare) then move(line, {{behind = others, by = by}}) end
  return n
end

-- releaseFair ends holds, be they in the queue, in which they come from the back, or of the lock, and tells the next if the lock is
-- free. It returns for each how many wait, if it had the lock, 0 if it was in the queue, and -1 if there was no such hold; and then, if
-- the next is not known to have heard, the hold of that.
--
-- Where one hold ends, heir, unless that is '', is a waiter of the same client. If it is the first in the queue, it gets the lock, and is told
-- by the answer: how many wait behind it, its first token, how many, and how many of the holds behind, a list as served is, follow in a run. The same
-- release may be carried out again, at any later time: that changes nothing of what heir has by then. Served are the holds of a run that is over.
local function releaseFair(name, queue, times, token, channel, word, word2, count, heir, ttl, n, kind, text, served, behind, ...)
  local line, holds, results, shifts = lineOf(queue, times), {...}, {}, {}
  local ready, first = false, nil
  local fields = redis.pcall('HLEN', name)
  if overwritten(fields) then
    fields = 0
  elseif type(fields) == 'table' then
    call('HLEN', name) -- the error again
  end
  if served ~= '' then pass(line, served) end
  if heir ~= '' and fields > 0 and call('HEXISTS', name, holds[1]) == 1 then
    ready, first = pcall(head, line, heir) -- a server without memory gives an heir no time
  end
  if ready and first == heir and call('HLEN', name) == 1 then
    local granted, fence, block = pcall(grant, line, heir, name, heir, ttl, token, n, kind, text)
    if granted then
      call('HDEL', name, holds[1])
      local ok, run = false, 0
      if behind ~= '' then ok, run = pcall(follow, line, behind, ttl) end
      return {line.length, fence, block, ok and run or 0}
    end
  end
  if fields > 0 then fields = call('HLEN', name) end
  for i, hold in ipairs(holds) do
    results[i] = -1
    if fields > 0 and call('HDEL', name, hold) == 1 then
      results[i], fields = 1, fields - 1
    end
  end
  if line.length > 0 then
    local left = fields > 0 and call('PTTL', name) or -2
    for i, hold in ipairs(holds) do
      local at = results[i] == -1 and line.length > 0 and call('LPOS', queue, hold, 'RANK', '-1')
      if at then
        leave(line, hold, at, clock() + math.max(left, 0), shifts)
        results[i] = 0
      end
    end
    move(line, shifts)
    first = head(line)
    if first and left == -2 then
      local patient, heard = tell(first, channel, word, word2, count)
      if patient == deaf and line.length > 1 then limit(line, first, clock() + deaf) end -- from now on, and not from when the next asks
      if not heard then results[#results + 1] = first end
    end
  end
  for i = 1, #holds do
    if results[i] == 1 then results[i] = line.length end
  end
  return #results == 1 and results[1] or results
end
