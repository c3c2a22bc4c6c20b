-- raise has all tokens of a sequence, of the kind of take, be above floor from now on.
local function raise(token, kind, floor)
  if (tonumber(call('GET', token) or 0) or 0) >= floor then return end
  local text = string.format('%.0f', floor)
  if kind == '' then
    call('SET', token, text)
  elseif floor >= now() then
    call('SET', token, text, 'PX', kept + math.ceil((floor - now()) / 1000))
  end
end
