-- suffix is what follows the prefix in the keys and channels of a name.
local function suffix(name) return string.find(name, '{', 1, true) and ':' .. name or ':{' .. name .. '}' end

-- acquireInTurn is acquire for one who waits in the line of all clients that wait
-- for the lock: see internal/redistopic. Place is its ticket, or 0. With a question
-- mark before it, it is not its turn: while the lock is free and others are before
-- it, it is refused as if the lock were held for 0 milliseconds. Label says which
-- database the line is in. To {'held', left} it adds the ticket, and the last
-- tickets that were granted and given out.
--
-- The line is a hash beside the lock. It is no KEYS of the script: where a user has
-- no right to it, or a slot moves, there is no line.
local function acquireInTurn(place, word, word2, label, name, hold, ttl, token, n, kind, text, mark)
  local line = 'dsync_turn' .. suffix(name)
  local known = redis.pcall('HMGET', line, 'last', 'granted', 'told', 'at')
  if known.err then return acquire(name, hold, ttl, token, n, kind, text, mark) end

  local early = string.sub(place, 1, 1) == '?'
  local ticket = tonumber(early and string.sub(place, 2) or place)
  local function number(i) return tonumber(known[i] or 0) or 0 end -- nothing in the line may be an error of the script
  local last, granted, told, at = number(1), number(2), number(3), number(4)
  -- A ticket of a line that was lost, or one that the line has passed by further than those who pause one after the other: all that are
  -- passed by ask after each release.
  if ticket > last or ticket < granted - 16 then ticket = 0 end

  -- tell tells all in the line that the lock is held for left milliseconds, and which ticket was granted last: see readHeld.
  local function tell(left, latest)
    local channel = 'redisson_lock__channel' .. suffix(name)
    local message = '-' .. label .. string.format('%010.0f%06.0f', math.max(1, math.min(left, 1000000000)), latest % 1000000)
    redis.pcall(word, channel, message)
    if word2 ~= '' then redis.pcall(word2, channel, message) end
  end

  local others = last > granted and (ticket == 0 or ticket > granted + 1)
  local answer = {'held', 0}
  if not (early and others and call('PTTL', name) == -2) then
    answer = acquire(name, hold, ttl, token, n, kind, text, mark)
  end
  if type(answer) == 'number' or answer[1] == 'granted' then
    if ticket <= granted then return answer end
    if ticket == last then
      redis.pcall('HDEL', line, 'last', 'granted', 'told', 'at')
      if ticket > granted + 1 then tell(tonumber(ttl), ticket) end
      return answer
    end
    local micros, time = now()
    redis.pcall('HSET', line, 'granted', string.format('%.0f', ticket), 'at', time)
    local fast = math.abs(micros - at) < 4000 + 40 * (last - ticket)
    if not fast or ticket > granted + 1 then tell(tonumber(ttl), ticket) end
    return answer
  end
  if answer[1] ~= 'held' then return answer end

  if ticket == 0 then
    if last == 0 then last, granted = now() + 0, now() + 0 end -- so that tickets rise when the line is lost
    last = last + 1
    ticket = last
    local done = redis.pcall('HSET', line, 'last', string.format('%.0f', last), 'granted', string.format('%.0f', granted))
    if type(done) == 'table' then return answer end
  elseif not early and ticket > granted and math.abs(now() - told) > 2000 then -- microseconds: of many that ask at once, one tells
    local _, time = now()
    redis.pcall('HSET', line, 'told', time)
    tell(answer[2] < 0 and 1000000000 or answer[2], granted)
  end
  redis.pcall('PEXPIRE', line, 15000) -- somebody in the line asks every five seconds
  return {'held', answer[2], ticket, granted, last}
end
