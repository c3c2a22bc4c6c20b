-- takeInTurn is take for one who waits in the line of all clients that wait for the lock at this node: see internal/redistopic. Place is its
-- ticket, or 0. With a question mark before it, it is not its turn: while the lock is free and others are before it, it is refused as if the lock
-- were held for 0 milliseconds.
--
-- One that is refused gets {the milliseconds that are left, or -1 if the lock does not expire; its ticket; the last ticket that was granted; the last that
-- was given out}.
--
-- The line is a string beside the lock, with a word and four numbers: the last ticket that was given out, the last that was granted, when a refusal was told last,
-- and when the last ticket was granted. It is no KEYS of the script, and a line that somebody may not use, or that is something else, is none. Nothing
-- that is done once the lock has the value may be an error of the script: that says that nothing was done.
local function takeInTurn(place, channel, name, value, ttl, seal)
  local key = name .. ':dsync_turn'
  local text, left = try('GET', key), try('PTTL', name)
  local last, granted, told, at = '0', '0', '0', '0'
  if text then
    if type(text) == 'string' and #text <= 72 then last, granted, told, at = string.match(text, '^line (%d+) (%d+) (%d+) (%d+)$') else last = nil end
  end
  if not last or type(left) ~= 'number' then return take(name, value, ttl, seal) end
  last, granted, told, at = tonumber(last), tonumber(granted), tonumber(told), tonumber(at)
  local early = string.sub(place, 1, 1) == '?'
  local ticket = tonumber(early and string.sub(place, 2) or place)
  -- A ticket of a line that was lost, or one that the line has passed by further than those who pause one after the other: all that are
  -- passed by ask after each release.
  if ticket > last or ticket < granted - 16 then ticket = 0 end

  -- micros is the server's time, which stands still while a script runs.
  local function micros()
    local time = try('TIME')
    return time.err and 0 or time[1] * 1000000 + time[2]
  end
  -- keep writes the line. Somebody in it asks every five seconds.
  local function keep() return try('SET', key, string.format('line %.0f %.0f %.0f %.0f', last, granted, told, at), 'PX', 10000) end
  -- tell tells all in the line that the lock is held for left milliseconds, and which ticket was granted last: see readHeld.
  local function tell(left) try('PUBLISH', channel, string.format('-%.0f%06.0f', math.max(1, math.min(left, 1000000000)), granted % 1000000)) end

  local others = last > granted and (ticket == 0 or ticket > granted + 1)
  local done = false
  if not (early and others and left == -2) then done = take(name, value, ttl, seal) end
  if done then
    if done.err or ticket <= granted then return done end
    local passed = ticket > granted + 1
    local now = micros()
    local fast = math.abs(now - at) < 4000 + 40 * (last - ticket)
    granted, at = ticket, now
    if ticket == last then try('DEL', key) else keep() end
    if passed or ticket < last and not fast then tell(tonumber(ttl)) end
    return done
  end

  if ticket == 0 then
    if last == 0 then last, granted = micros(), micros() end -- so that tickets rise when the line is lost
    last = last + 1
    ticket = last
  elseif not early and ticket > granted then
    local now = micros()
    if math.abs(now - told) > 2000 then -- of many that ask at once, one tells
      told = now
      tell(left < 0 and 1000000000 or left)
    end
  end
  if keep().err then return false end
  return {left == -2 and 0 or left, ticket, granted, last}
end
