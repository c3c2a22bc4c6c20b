-- stay puts a hold into the line, unless it is there: last, or if it was there
-- before, and so was first when it was thrown out, first again. It sets its time
-- anew, and takes those behind along, whose distance to it has to stay: waiters of
-- Redisson do not ask again.
local function stay(line, hold, again, free)
  local before = line.length > 0 and timeOf(line, hold)
  local at = line.length > 0 and (before or again) and call('LPOS', line.queue, hold)
  local time = free + patience
  if not at then
    if again then
      call('LPUSH', line.queue, hold)
      at, before = 0, free
    else
      call('RPUSH', line.queue, hold)
      at, before = line.length, nil
    end
    line.length = line.length + 1
  end
  local behind = line.length - at - 1
  if at > 0 then -- whoever of Redisson gets the lock takes its wait off the times of all behind
    local previous = timeOf(line, call('LINDEX', line.queue, at - 1)) or free
    time = math.max(time + along + at * default, previous + patience)
    local late = behind * default / spare
    if before and time - before < along and before - time < along + late then return end
  end
  if before then move(line, {{behind = behind, by = time - before}}) end
  setTime(line, hold, time)
end

-- acquireFair is acquire for a lock with a queue. How is 'try' for a hold that does not wait, 'wait', or 'again' for one that was
-- put into the queue before. It returns what acquire returns.
local function acquireFair(name, queue, times, token, hold, ttl, how, channel, word, word2, count, ...)
  local line = lineOf(queue, times)
  local left = call('PTTL', name)
  local first = left == -2 and head(line, hold) -- while the lock is held it is nobody's turn
  if left == -2 and (not first or first == hold) or left ~= -2 and call('HEXISTS', name, hold) == 1 then
    local fence, block = grant(line, first, name, hold, ttl, token, ...)
    return granted(fence, block)
  end
  if how ~= 'try' then stay(line, hold, how == 'again', clock() + math.max(left, 0)) end
  if left ~= -2 then return {'held', left} end
  -- It is somebody else's turn, who was told, unless that was lost with a connection, or who is dead.
  first = call('LINDEX', queue, 0)
  if first ~= hold then limit(line, first, clock() + tell(first, channel, word, word2, count)) end
  return {'held', 500}
end
