local call = redis.call

-- now is the server's time in microseconds, and that as text. It stands still while a script runs.
local micros, microsText
local function now()
  if not micros then
    local time = call('TIME')
    microsText = time[1] .. string.sub('000000', #time[2] + 1) .. time[2] -- faster than to format a number
    micros = tonumber(microsText)
  end
  return micros, microsText
end

-- kept is how long a sequence is kept, in milliseconds: from its last use on,
-- and from when the clock has passed its last token.
local kept = 3600000

-- granted is the answer of a script that grants a hold: the first token (1 if
-- there is none), or, if there are several or the name is marked, a code and
-- numbers.
local function granted(first, block, marked)
  if block == 1 and not marked then return first end
  return {'granted', first, block, marked and 1 or 0}
end

-- take takes n tokens out of the sequence token. It returns the first, how many,
-- and what the lock keeps about the hold: see keys.go. Kind is 'time', or '' for
-- a counter of Redisson.
--
-- Tokens are the time, so they continue to rise when the sequence is lost. A block
-- shrinks where it would end a millisecond or more after the present, so that the
-- sequence does not run away from the clock. A sequence that is a second ahead was
-- raised, or the clock stepped back, and blocks need not shrink.
local function take(token, n, kind, text)
  if not token then return 1, 1, '1' end
  local block = tonumber(n)
  if kind == '' then
    local last = call('INCRBY', token, block)
    return last - block + 1, block, '#' .. string.format('%.0f', last) .. text
  end
  local first, time = now()
  local new = block == 1 and time or string.format('%.0f', first + block - 1)
  local last = call('SET', token, new, 'KEEPTTL', 'GET')
  if last and (#last ~= #time or last >= time) then -- numbers of as many digits compare as texts, and faster
    local ahead = (tonumber(last) or 0) + 1 - first
    if ahead > 0 and ahead <= 1000000 then block = math.max(1, math.min(block, 1000 - ahead)) end
    ahead = math.max(ahead, 0)
    first = first + ahead
    new = string.format('%.0f', first + block - 1)
    call('SET', token, new, 'PX', kept + math.ceil(ahead / 1000))
  elseif not last or string.sub(last, 1, 8) ~= string.sub(time, 1, 8) then -- once in 100 s
    call('PEXPIRE', token, kept)
  end
  return first, block, '#' .. new .. text
end
