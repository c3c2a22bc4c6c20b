-- some and all are how many holds are looked at.
local some, all = 8, 1000000000

-- readersOf looks at some holds but one that read a lock. It returns the living
-- ones, each followed by the milliseconds that it has left; the longest of these,
-- or -2; the dead ones; whether one is foreign; whether these were all; or else an
-- error. A hold of dsync has ':read' behind it and ends with its key. Any other
-- hold is foreign and lives as long as the lock, since Redisson does not always
-- renew a reader's keys.
local function readersOf(name, prefix, but, count)
  local r = {living = {}, longest = -2, dead = {}, foreign = false}
  local fields = call('HRANDFIELD', name, count, 'WITHVALUES')
  local lock = call('PTTL', name)
  for i = 1, #fields, 2 do
    local hold, left = fields[i], lock
    if hold ~= 'mode' and hold ~= but then
      if string.sub(hold, -5) == ':read' then
        left = redis.pcall('PTTL', prefix .. hold .. ':rwlock_timeout:1')
        if type(left) ~= 'number' then
          if string.find(left.err, 'non local key', 1, true) then left = {err = 'TRYAGAIN the keys of the lock are on two nodes'} end
          return {failed = left}
        end
      else
        r.foreign = true
      end
      if left ~= -2 then
        r.living[#r.living + 1], r.living[#r.living + 2] = hold, tostring(left)
        r.longest = math.max(r.longest, left)
      else
        r.dead[#r.dead + 1] = hold
      end
    end
  end
  r.all = #fields < 2 * count
  return r
end

-- remove removes holds of a lock, of which the field mode stays.
local function remove(name, holds)
  for i = 1, #holds, most do call('HDEL', name, unpack(holds, i, math.min(i + most - 1, #holds))) end
end
