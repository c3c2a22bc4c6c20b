-- Permits are Redisson's RPermitExpirableSemaphore: see docs/redisson.md. A member
-- of ends has 16 bytes: Java's are random; here the first 12 are the hold's, and
-- the last 4 the number of the permit. A script touches no key that it has
-- removed, and changes nothing before it has looked at all: see fair.lua.
local call = redis.call

-- A limit that came with a grant is kept for as long as holds last, and for
-- those that listen for spare more: a waiter asks every 5 s, and when the hold
-- that ends first has ended. margin of that spares most grants the command.
local spare, margin = 15000, 8000

-- clock returns the server's time in milliseconds, rounded down, and rounded up, for ends: no hold ends early.
local function clock()
  local time = call('TIME')
  local now = time[1] * 1000
  return now + math.floor(time[2] / 1000), now + math.ceil(time[2] / 1000)
end

local function membersOf(hold, n)
  local members = {}
  for i = 1, tonumber(n) do members[i] = hold .. struct.pack('>I4', i) end
  return members
end

-- freeOf returns how many permits are free, nil if no limit is kept, and whether
-- the name is sealed.
local function freeOf(name)
  local free = redis.pcall('GET', name) -- false if there is none
  if type(free) == 'table' then
    if redis.pcall('HEXISTS', name, 'dsync:seal') == 1 then return nil, true end
    free = call('GET', name)
  end
  local number = tonumber(free)
  if free and not number then call('HEXISTS', name, '') end -- an error that says so
  return number
end

-- count returns how many permits are free, nil if no limit is kept; how many are
-- held; how many members are over, which count as free; and whether it is sealed.
local function count(name, ends, now)
  local free, sealed = freeOf(name)
  if sealed then return nil, 0, 0, true end
  local held = call('ZCARD', ends)
  local over = held > 0 and call('ZCOUNT', ends, 0, now) or 0
  return free and free + over, held - over, over
end

-- overwritten reports whether an error of count says that a key is something else. Then no hold is left, whatever the ends are.
local function overwritten(err) return string.find(type(err) == 'table' and err.err or err, 'WRONGTYPE', 1, true) end

-- purge removes those that are over.
local function purge(ends, now, over)
  if over > 0 then call('ZREMRANGEBYSCORE', ends, 0, now) end
end

-- keep has the keys of a limit that came with a grant outlive a hold that lasts ttl milliseconds.
local function keep(name, ends, ttl)
  local left = call('PTTL', name)
  if left == -1 then call('PERSIST', ends) end -- addPermits of Redisson makes a limit permanent
  if left < 0 then return end
  if left < ttl + spare - margin then
    left = ttl + spare
    call('PEXPIRE', name, left)
  end
  call('PEXPIRE', ends, left)
end

-- forget ends a limit that came with a grant, of which no permit is held. Told
-- is how many subscribers heard of it; it is not known if counted is ''.
local function forget(name, told, counted)
  if call('PTTL', name) < 0 then return end
  if told == 0 and counted ~= '' then
    call('DEL', name)
  else
    call('PEXPIRE', name, spare)
  end
end

-- tell publishes how many permits are free, and returns how many subscribers were told. Java takes no number below 0.
local function tell(free, channel, ...)
  local told = 0
  for _, word in ipairs({...}) do told = told + call(word, channel, string.format('%d', math.max(free, 0))) end
  return told
end
