-- some and all are how many holds are looked at, any ones of them first: mostly these say what there is to know.
local some, all = 8, 1000000000

-- readersOf looks at some holds but one that read a lock. It returns those that live, each followed by the milliseconds that it has left; the
-- longest of these, or -2; those that are dead; whether these were all; or else an error.
local function readersOf(name, prefix, but, count)
  local r = {living = {}, longest = -2, dead = {}}
  local fields = call('HRANDFIELD', name, count, 'WITHVALUES')
  for i = 1, #fields, 2 do
    local hold, left = fields[i], -2
    for n = 1, hold ~= but and tonumber(fields[i + 1]) or 0 do
      local rest = redis.pcall('PTTL', prefix .. hold .. ':rwlock_timeout:' .. n)
      if type(rest) ~= 'number' then
        if string.find(rest.err, 'non local key', 1, true) then rest = {err = 'TRYAGAIN the keys of the lock are on two nodes'} end
        return {failed = rest}
      end
      left = math.max(left, rest)
    end
    if left ~= -2 then
      r.living[#r.living + 1], r.living[#r.living + 2] = hold, tostring(left)
      r.longest = math.max(r.longest, left)
    elseif hold ~= 'mode' and hold ~= but then
      r.dead[#r.dead + 1] = hold
    end
  end
  r.all = #fields < 2 * count
  return r
end

-- remove removes holds of a lock, of which the field mode stays.
local function remove(name, holds)
  for i = 1, #holds, most do call('HDEL', name, unpack(holds, i, math.min(i + most - 1, #holds))) end
end
