-- The waiters of a fair lock are in a list, queue, in order, and in a sorted set,
-- times, with the time from which on others may throw them out, once they are
-- first. Each listens on channel .. ':' .. hold. No script touches a key again
-- that it has removed: while a slot moves, the script would end half-way.

-- patience is how long after the end of the hold that it waits for a waiter of
-- this driver may be thrown out. One of Redisson has default, or its own limit.
local patience, default = 15000, 300000

-- along is by how much the time of a waiter that is not first has to change until
-- it is set anew.
local along = 60000

-- few is how many waiters behind one that gives up are moved at any rate. More are
-- moved when that makes a difference of default for one of spare of them, so that
-- a queue that dissolves moves about spare for each that leaves.
local few, spare = 16, 4

-- deaf is how long a waiter may leave a free lock alone that does not even listen.
local deaf = 5000

-- clock is the server's time in milliseconds. It stands still while a script runs.
local millis
local function clock()
  if not millis then
    local time = call('TIME')
    millis = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return millis
end

local function lineOf(queue, times) return {queue = queue, times = times, length = call('LLEN', queue)} end

local function timeOf(line, hold)
  local time = call('ZSCORE', line.times, hold)
  return time and tonumber(time)
end

local function setTime(line, hold, time) call('ZADD', line.times, string.format('%.0f', time), hold) end

-- takeOut removes a hold from the line, from the end that is nearer.
local function takeOut(line, hold, at)
  call('LREM', line.queue, at == 0 and '1' or '-1', hold)
  call('ZREM', line.times, hold)
  line.length = line.length - 1
end

-- move gives the last shifts[i].behind waiters shifts[i].by more milliseconds, for
-- each i, in the order of these numbers.
local function move(line, shifts)
  local i, by = #shifts, 0
  local behind = i > 0 and shifts[i].behind or 0
  while behind > 0 do
    local holds = call('LRANGE', line.queue, -behind, math.min(most - behind, 0) - 1)
    local times = {}
    for n, time in ipairs(call('ZMSCORE', line.times, unpack(holds))) do
      while i > 0 and shifts[i].behind >= behind do
        i, by = i - 1, by + shifts[i].by
      end
      if time then
        times[#times + 1] = string.format('%.0f', time + by)
        times[#times + 1] = holds[n]
      end
      behind = behind - 1
    end
    if #times > 0 then call('ZADD', line.times, unpack(times)) end
  end
end

-- head throws out those in front whose time is over, and returns who is first
-- then, or false. If the time of the one that asks is over, it gets more, and so
-- do those behind it.
local function head(line, asks)
  while line.length > 0 do
    local first = call('LINDEX', line.queue, 0)
    local time = timeOf(line, first)
    if not time or time > clock() then
      line.first, line.time = first, time
      return first
    end
    if first == asks then
      move(line, {{behind = line.length, by = clock() + patience - time}})
      return first
    end
    takeOut(line, first, 0)
  end
  return false
end

-- leave takes a hold out of the line, where it is at. What those behind then wait
-- for ends at base, or at the time of the one before, but not before all in front
-- have had a wait of default each. They keep their distance to that, and the next
-- one gets patience at least.
--
-- Where more than few are behind, the one before gets so much more time instead,
-- until a time is too late by default for each spare behind, or that of the one
-- before by an hour more. Those behind one that leaves with the lock (granted) are
-- not moved before that either. What has to be moved is added to shifts; holds
-- that leave together do so from the back.
local function leave(line, hold, at, base, shifts, granted)
  local behind, last = line.length - at - 1, shifts[#shifts]
  if last and behind < last.behind then -- not from the back
    move(line, shifts)
    for i = #shifts, 1, -1 do shifts[i] = nil end
    last = nil
  end
  local time = granted and line.first == hold and line.time or timeOf(line, hold)
  takeOut(line, hold, at)
  if behind == 0 then return end
  local following = timeOf(line, call('LINDEX', line.queue, at))
  if not time or not following then return end
  if last and last.behind == behind then following = following + last.by end
  local before = at > 0 and call('LINDEX', line.queue, at - 1)
  local previous = before and timeOf(line, before)
  local from = math.max(base + at * default, previous or 0)
  local by = math.max(from - time, from + patience - following)
  if by >= 0 then return end
  local slack = 2 * along + behind * default / spare
  if (granted or behind > few) and -by <= slack then
    if not previous then return end
    local second = at > 1 and timeOf(line, call('LINDEX', line.queue, at - 2)) or base
    if previous - by - second <= slack + 12 * default then
      setTime(line, before, previous - by)
      return
    end
  end
  if last and last.behind == behind then
    last.by = last.by + by
  else
    shifts[#shifts + 1] = {behind = behind, by = by}
  end
end

-- tell publishes on the channel of a waiter, and returns how long it may leave the
-- lock alone. Count is '' where nobody knows how many subscribers there are.
local function tell(hold, channel, word, word2, count)
  local told = publish('0', channel .. ':' .. hold, word, word2)
  return (told > 0 or count == '') and patience or deaf
end

-- limit has a waiter thrown out at a time, if not before. Those behind keep theirs.
local function limit(line, hold, to)
  local time = timeOf(line, hold)
  if time and time > to then setTime(line, hold, to) end
end
